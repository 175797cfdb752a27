"""What notes the inputs of a rank, or (`NO_TAPE`) does not: everything that has inputs asks its session for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias, TypeVar

from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.session import Session
from rlinf_scheduler.tape.work import Work, working_at

T = TypeVar("T")
Frames: TypeAlias = Callable[[], Sequence[Buffer]]

CONSTRUCTING = "__init__"
# Operation and subject of a value of a call that streams.
YIELDED = "yield", "a value"


class Note:
    """An operation that has begun; this one notes nothing."""

    __slots__ = ()

    def took(self, frames: Frames = list, about: Any = None) -> None:
        """It brought this: bytes, which are looked at if they are noted, and what is to be known about them."""

    def failed(self, error: BaseException) -> None:
        """It raised."""

    def follow(self, promise: Promise[Any]) -> None:
        """Note what the promise of its end fails with; what it brings is noted by who takes it."""


NO_NOTE = Note()


class Tape:
    """Notes nothing; see `RankTape`.

    Attributes:
        is_recording: whether it does.
    """

    is_recording = False

    def begin(self, operation: str, subject: str, given: Encoded | None = None) -> Note:
        """An operation begins, in the lane of what this thread or task works at.

        Args:
            operation: such as "get".
            subject: of what.
            given: what it gives away.
        """
        del operation, subject, given
        return NO_NOTE

    def run(self, operation: str, subject: str, function: Callable[[], T]) -> T:
        """What a function returns, whose result is small and can be pickled, or raises."""
        del operation, subject
        return function()

    def made_from(self, worker_class: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The worker is made from this class, with these arguments."""

    def call(self, method: str, kind: str, frames: Frames) -> AbstractContextManager[Work]:
        """A block that is a call.

        Args:
            method: which.
            kind: what is done with it.
            frames: its arguments.
        """
        del method, kind, frames
        return working_at(Work(""))


NO_TAPE = Tape()


def tape_of(session: Session) -> Tape:
    """What notes the inputs of a session's process."""
    return session.fact(Tape) or NO_TAPE
