"""What a process says of itself when it is asked: one service, at which its parts register a level each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from rlinf_scheduler.comm import Request
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.session import Session

# A service of every process of a job.
SURVEY = "job.survey"
T = TypeVar("T")
_log = Reporter(__name__)


class Level(NamedTuple):
    """Something that processes are asked.

    Attributes:
        name: its name.
        reply: the type of the answer.
        question: the type of the question; None where there is nothing to say.
    """

    name: str
    reply: Any
    question: Any = None


class LevelRequest(msgspec.Struct, frozen=True, array_like=True):
    """Ask a process at a level -> what that replies with."""

    level: str
    about: msgspec.Raw = msgspec.Raw(b"\xc0")

    @classmethod
    def at(cls, level: Level, about: Any = None) -> LevelRequest:
        """Return the question at a level."""
        return cls(level.name, msgspec.Raw(msgspec.msgpack.encode(about)))


class Levels:
    """The levels at which this process answers; a service of its session. On the I/O thread, but for its making.

    Args:
        session: this process's.
    """

    def __init__(self, session: Session) -> None:
        self._call_later = session.messenger.call_later
        self._answers: dict[str, tuple[Level, Callable[[Any], Any], bool]] = {}
        session.messenger.serve(SURVEY, self._on_ask, LevelRequest)

    def add(self, level: Level, answer: Callable[[Any], Any], *, beside: bool = False) -> None:
        """Answer at a level from now on.

        Args:
            level: which.
            answer: called with the question.
            beside: it may take a while, and is called in a thread of its own.
        """
        self._answers[level.name] = level, answer, beside

    def now(self, level: Level, about: Any = None) -> Any:
        """Return what this process says at a level."""
        return self._answers[level.name][1](about)

    def _on_ask(self, request: Request) -> None:
        asked: LevelRequest = request.head
        if asked.level not in self._answers:
            request.fail(LookupError(f"nothing is answered at level {asked.level!r}"))
            return
        level, answer, beside = self._answers[asked.level]
        about = msgspec.msgpack.decode(asked.about, type=level.question)
        if beside:
            run_beside_in_time(self._call_later, _answer, request, partial(answer, about))
        else:
            request.reply(answer(about))


def _answer(request: Request, answer: Callable[[], Any]) -> None:
    request.reply(answer())


class Additions(Generic[T]):
    """Functions that each return a record with something added; one that fails costs its own part only.

    >>> additions = Additions[int]()
    >>> forget = additions.add(lambda number: number + 1)
    >>> _ = additions.add(lambda number: 10 * number)
    >>> additions.applied(1), forget(), additions.applied(1)
    (20, None, 10)
    """

    def __init__(self) -> None:
        self._additions: dict[int, Callable[[T], T]] = {}
        self._numbers = itertools.count()

    def add(self, addition: Callable[[T], T]) -> Callable[[], None]:
        """Let a part add to it; returns what undoes that, once or again."""
        self._additions[number := next(self._numbers)] = addition

        def forget() -> None:
            self._additions.pop(number, None)

        return forget

    def applied(self, record: T) -> T:
        """The record with everything that is added."""
        for addition in tuple(self._additions.values()):
            try:
                record = addition(record)
            except Exception:  # noqa: BLE001 - of one part: the others have something to say
                _log.exception("what a part of this process is at could not be told")
        return record
