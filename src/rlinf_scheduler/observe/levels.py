"""What a process says of itself, and the job's home of all: one service, at which parts register a level each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from rlinf_scheduler.comm import Endpoint, Messenger, Reply, Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.comm.waits import IDLE, Wait, awaited
from rlinf_scheduler.errors import ClusterError, CommError, CommTimeout
from rlinf_scheduler.session import Session

# A service of every process of a job.
SURVEY = "job.survey"
T = TypeVar("T")
_log = Reporter(__name__)


class LevelRequest(msgspec.Struct, frozen=True, array_like=True):
    """Ask a process at a level -> None, and the answer in a frame, which the asking thread decodes."""

    level: str
    about: msgspec.Raw


class Level(NamedTuple):
    """Something that processes are asked, or told.

    Attributes:
        question: the type of the question; None where there is nothing to say.
        what: of the job's home, what it is asked for, in words.
    """

    name: str
    reply: Any
    question: Any = None
    what: str = ""

    def ask(
        self, messenger: Messenger, process: Endpoint, about: Any = None, *, timeout_s: float
    ) -> Promise[Reply]:
        """Ask a process; `answer` reads the reply."""
        request = LevelRequest(self.name, msgspec.Raw(msgspec.msgpack.encode(about)))
        return messenger.request(process, SURVEY, request, timeout_s=timeout_s, reply_type=None)

    def tell(self, messenger: Messenger, process: Endpoint, about: Any) -> None:
        """Tell a process, of which no answer is expected."""
        messenger.notify(process, SURVEY, LevelRequest(self.name, msgspec.Raw(msgspec.msgpack.encode(about))))

    def answer(self, reply: Reply) -> Any:
        """Return what was answered.

        Raises:
            CommError: it has another shape.
        """
        try:
            return msgspec.msgpack.decode(reply.frames[0], type=self.reply)
        except (IndexError, msgspec.DecodeError) as error:
            message = f"the answer at level {self.name!r} has another shape: {error}"
            raise CommError(message) from error

    def answer_of_home(self, asked: Promise[Reply]) -> Any:
        """Return what the job's home answers; waits for it.

        Raises:
            ClusterError: the home does not answer.
            CommError: it is gone, it answers by an error, or its answer has another shape.
        """
        return self.answer(_reply_of_home(asked, self.what))


@awaited(lambda local: Wait(IDLE, local["what"]))
def _reply_of_home(asked: Promise[Reply], what: str) -> Reply:
    try:
        return asked.result()
    except CommTimeout as error:
        raise ClusterError(f"the job's driver does not answer: {error}") from error


class Levels:
    """The levels at which this process answers; a service of its session. On the I/O thread, but for its making."""

    def __init__(self, session: Session) -> None:
        self._call_later = session.messenger.call_later
        self._answers: dict[str, tuple[Level, Callable[[Any], Any], bool]] = {}
        session.messenger.serve(SURVEY, self._on_ask, LevelRequest)

    def add(self, level: Level, answer: Callable[[Any], Any], *, beside: bool = False) -> None:
        """Answer at a level from now on.

        Args:
            level: which.
            answer: called with the question; returns the answer, or the promise of it.
            beside: it may take a while, and is called in a thread of its own.
        """
        self._answers[level.name] = level, answer, beside

    def has(self, level: Level) -> bool:
        """Say whether this process answers at a level."""
        return level.name in self._answers

    def now(self, level: Level, about: Any = None) -> Any:
        """Return what this process says at a level."""
        return self._answers[level.name][1](about)

    def _on_ask(self, request: Request) -> None:
        asked: LevelRequest = request.head
        if asked.level not in self._answers:
            request.fail(CommError(f"nothing is answered at level {asked.level!r}"))
            return
        level, answer, beside = self._answers[asked.level]
        answered = partial(answer, msgspec.msgpack.decode(asked.about, type=level.question))
        if beside:
            found: Promise[Any] = Promise()
            found.add_done_callback(partial(_pass_on, request))
            run_beside_in_time(self._call_later, found.set_from, answered)
        else:
            _answer(request, answered)


def _answer(request: Request, answered: Callable[[], Any]) -> None:
    found = answered()
    if isinstance(found, Promise):
        found.add_done_callback(partial(_pass_on, request))
    else:
        request.reply(None, [msgspec.msgpack.encode(found)])


def _pass_on(request: Request, found: Promise[Any]) -> None:
    try:
        answer = msgspec.msgpack.encode(found.result(0))
    except Exception as error:  # noqa: BLE001 - it belongs to the process that has asked
        request.fail(error)
    else:
        request.reply(None, [answer])


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
