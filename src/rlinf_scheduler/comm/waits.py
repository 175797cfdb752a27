"""What a thread waits for, read off its stack when somebody asks: a wait itself writes nothing down, and costs nothing.

A function in which a thread may block says by `awaited` how its local variables tell what it waits for. Whoever wants
to know walks the stack of a blocked thread outwards, from `Promise.wait` or the like, to the first such function.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

import msgspec

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
