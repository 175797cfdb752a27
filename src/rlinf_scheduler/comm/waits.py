"""What a thread waits for, read off its stack when somebody asks: a wait itself writes nothing down, and costs nothing.

A function in which a thread may block says by `awaited` how its local variables tell what it waits for. Whoever wants
to know walks the stack of a blocked thread outwards, from `Promise.wait` or the like, to the first such function.

Where time is accounted for, `account` is told of each wait that is over: when it began, what it was for, as data, and
who ended it.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

import msgspec

from rlinf_scheduler.comm.codec.interruptions import raised_by_signal_handler

F = TypeVar("F", bound=Callable[..., Any])

# Kinds of waits, by what ends them.
RESULT, CHANNEL, MESSAGE, WEIGHTS, DEVICE, LAUNCH, NAME, COLLECTIVE, IDLE, OTHER = (
    "result",
    "channel",
    "message",
    "weights",
    "device",
    "launch",
    "name",
    "collective",
    "idle",
    "other",
)


class Wait(msgspec.Struct, frozen=True, array_like=True):
    """What a thread waits for.

    Attributes:
        kind: what ends it, one of the words above.
        operation: what it is in, as its caller would write it, e.g. "get_batch('trajectories', 4096)".
        since_s: for how long, in seconds; 0 where that is not known.
        timeout_s: its deadline, in seconds from its beginning; None without.
        peers: the processes that could end it, where it knows them, e.g. "rollout:1".
        subject: the channel, or what weights are published as.
        queue: the queue of that channel, as `repr` writes it.
        needs: the weight or number of a batch that is waited for, or the version of weights; 0 for none.
        detail: what is known of it besides, a phrase.
        counts_items: `needs` is a number of items.
    """

    kind: str
    operation: str
    since_s: float = 0.0
    timeout_s: float | None = None
    peers: tuple[str, ...] = ()
    subject: str = ""
    queue: str = ""
    needs: float = 0
    detail: str = ""
    counts_items: bool = False


class Cause(NamedTuple):
    """What a wait is for, without what differs from one to the next: its queue, or the number of a version.

    Attributes:
        kind: what ends such a wait, as of `Wait`.
        what: what it is in: the name of the operation and its arguments; or in words.
        subject: the channel, or what weights are published as.
    """

    kind: str
    what: str | tuple[str, ...]
    subject: str = ""

    @property
    def operation(self) -> str:
        """It in words, e.g. "get_batch('trajectories')"."""
        what = self.what
        if isinstance(what, tuple):
            return f"{what[0]}({', '.join(map(repr, what[1:]))})"
        return f"{what}('{self.subject}')" if self.kind in (CHANNEL, WEIGHTS) and self.subject else what


# The clock by which waits begin and end, in seconds.
now: Callable[[], float] = monotonic
# Told when a wait has ended that began then, for what (None: its stack says), and who has ended it.
account: Callable[[float, Cause | None, str], object] | None = None

# What a wait is for is said within so many frames of it.
_NEAR = 6

_kept_in: dict[CodeType, str] = {}


def keeps_wait(variable: str) -> Callable[[F], F]:
    """Say in which local variable a function has what it waits for, since `began`; the function stays as it is.

    Raises:
        NameError: it has no such variables.
    """

    def note(function: F) -> F:
        code: CodeType = function.__code__
        for name in (variable, "began"):
            if name not in code.co_varnames:
                raise NameError(f"'{function.__qualname__}' has no local variable '{name}'", name=name)
        _kept_in[code] = variable
        return function

    return note


def wait_kept_in(frame: FrameType) -> tuple[float, Any] | None:
    """Since when a function waits, and for what (something that has a `cause`); None if it waits for nothing."""
    variable = _kept_in.get(frame.f_code)
    if variable is None:
        return None
    began = frame.f_locals.get("began")
    return None if began is None else (began, frame.f_locals[variable])


Describe = Callable[[dict[str, Any]], Wait | None]
_describers: dict[CodeType, Describe] = {}


def awaited(describe: Describe) -> Callable[[F], F]:
    """Say how the local variables of a function that blocks tell what it waits for; the function stays as it is.

    Args:
        describe: given them by name, as they are at any moment of the call, on another thread than the call's: it
            calls nothing that waits, and what it raises means that it cannot say. None: it waits for nothing.
    """

    def note(function: F) -> F:
        code: CodeType = function.__code__
        _describers[code] = describe
        return function

    return note


def describer_of(code: CodeType) -> Describe | None:
    """How a function says what it waits for; None of one that never said."""
    return _describers.get(code)


def cause_of(wait: Wait) -> Cause:
    """What a wait is for, given what is known of it."""
    if wait.kind == CHANNEL:
        return Cause(CHANNEL, wait.detail, wait.subject)
    if wait.kind == WEIGHTS:
        return Cause(WEIGHTS, "fetch_weights", wait.subject)
    return Cause(wait.kind, wait.operation, wait.subject)


def ender_of(wait: Wait) -> str:
    """Return who ends a wait, where only one process can; else "".

    Those of a channel are who holds it, and not who puts or takes.
    """
    return wait.peers[0] if len(wait.peers) == 1 and wait.kind != CHANNEL else ""


def cause_on_stack(frame: FrameType | None) -> tuple[Cause | None, str]:
    """What the function of `frame`, or one around it, has waited for, and who ends that; None: that was no wait."""
    caller = frame
    for _ in range(_NEAR):
        if frame is None:
            break
        describe = describer_of(frame.f_code)
        if describe is not None:
            try:
                wait = describe(frame.f_locals)
            except Exception as error:  # not all of its variables are there
                if raised_by_signal_handler(error):
                    raise
                break
            if wait is None or wait.kind == IDLE:
                return None, ""
            return cause_of(wait), ender_of(wait)
        frame = frame.f_back
    return Cause(OTHER, "" if caller is None else caller.f_code.co_qualname), ""
