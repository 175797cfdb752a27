"""The index of weights at the job's home: publishers announce their shards there, and readers ask there first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from rlinf_scheduler.comm.loop import Timer
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.names import GoneNames, Names
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import PeerDied, PeerNotFound
from rlinf_scheduler.observe.levels import Level, Levels
from rlinf_scheduler.observe.survey import Inquiry, Poll, Survey
from rlinf_scheduler.session import Session
from rlinf_scheduler.weights.index import Index, Layouts, Notice, gap_of, judge
from rlinf_scheduler.weights.records import (
    ANNOUNCE,
    FIND,
    HELD,
    INDEX,
    KEEP,
    LIST,
    Announce,
    Find,
    HeldShards,
    ReadVersion,
    WeightsUse,
    entry_of,
)
from rlinf_scheduler.weights.sources import Problem

MAX_KNOWN = 5
# Levels of every process, and of the job's home, and how long all may take; the question is a name of weights.
READ = Level("weights.read", tuple[str, ReadVersion | None, dict[str, int]], str)
JOB_READ = Level("job.weights", WeightsUse, str, "who reads weights")
READERS_TIMEOUT_S = 2.0
# So many answers of `judge` are kept: a group that publishes asks for the same ones over and over.
MAX_JUDGED = 256
# Layouts that are larger, packed, are judged beside the I/O thread.
JUDGED_HERE_BYTES = 1 << 14


# What is found out of layouts that some processes have, `judge` or `gap_of`.
_Find: TypeAlias = Callable[[Layouts, Sequence[str]], Any]


class _Unjudged(Exception):
    """Some layouts have not been looked at together."""

    def __init__(self, find: _Find, layouts: Layouts, processes: Sequence[str]) -> None:
        super().__init__()
        self.key = find, frozenset(layouts)
        self.find = partial(find, dict(layouts), list(processes))
        self.processes = list(processes)
        self.size_bytes = sum(len(each.manifest) + len(each.parts) for each in layouts.values())


@dataclass(slots=True, eq=False)
class _Reader:
    """A question that is not answered."""

    request: Request
    began: float
    timer: Timer | None = None


class IndexService:
    """Answers for the index, at the home's messenger. Everything is on the I/O thread."""

    def __init__(
        self, messenger: Messenger, members_of: Callable[[str], Sequence[int]] = lambda _group: ()
    ) -> None:
        self._messenger = messenger
        self._index = Index(partial(self._found, judge), partial(self._found, gap_of), members_of)
        # What was found out, and of which processes, by the digests of their layouts.
        self._verdicts: OrderedDict[tuple[_Find, frozenset[bytes]], tuple[list[str], Any]] = OrderedDict()
        self._gone = GoneNames(messenger.now)
        # The names of what is published, for those that ask for another one.
        self._entries = Names()
        self._waiting: dict[str, dict[_Reader, None]] = {}
        messenger.serve(ANNOUNCE, self._on_announce, Announce)
        messenger.serve(FIND, self._on_find, Find)
        messenger.serve(HELD, self._on_held, HeldShards)
        messenger.serve(LIST, self._on_list, None)
        messenger.on_peer_lost(self._on_lost)

    def _on_announce(self, request: Request) -> None:
        request.check_claim(request.head.shards.publisher.endpoint.process_id, "it publishes weights")
        self._do(partial(self._announce, request), request.fail)

    def _announce(self, request: Request) -> None:
        new: Announce = request.head
        if request.peer_id in self._messenger.peers.lost:
            return
        is_new = new.name not in self._index.names
        (_, own), *others = self._index.announce(new)
        if is_new:
            self._entries.add(entry_of(new.name))
            self._gone.taken(entry_of(new.name))
        request.reply(own)
        self._tell(others)
        self._answer_waiting(new.name)

    def _tell(self, notices: Iterable[Notice]) -> None:
        for endpoint, keep in notices:
            self._messenger.notify(endpoint, KEEP, keep)

    def _on_find(self, request: Request) -> None:
        self._do(partial(self._find, _Reader(request, self._messenger.now())), request.fail)

    def _find(self, reader: _Reader) -> None:
        if self._answered(reader):
            return
        question: Find = reader.request.head
        gone = self._gone.reason(entry_of(question.name))
        if gone is not None:
            reader.request.fail(PeerDied(entry_of(question.name), gone))
        elif question.timeout_s <= 0:
            self._expire(reader)
        else:
            self._waiting.setdefault(question.name, {})[reader] = None
            reader.timer = self._messenger.call_later(question.timeout_s, partial(self._expire, reader))
            reader.request.on_cancel(partial(self._forget, reader))

    def _answered(self, reader: _Reader) -> bool:
        """Answer a reader if there is what it asks for, or never will be."""
        found = None if reader.request.is_cancelled else self._index.find(reader.request.head)
        if found is not None:
            reader.request.reply(found)
        return found is not None or reader.request.is_cancelled

    def _answer_waiting(self, name: str) -> None:
        for reader in list(self._waiting.get(name, ())):
            self._do(partial(self._answer_parked, reader), partial(self._fail, reader))

    def _answer_parked(self, reader: _Reader) -> None:
        if self._answered(reader):
            self._forget(reader)

    def _fail(self, reader: _Reader, error: BaseException) -> None:
        self._forget(reader)
        reader.request.fail(error)

    def _expire(self, reader: _Reader) -> None:
        self._forget(reader)
        self._do(partial(self._answer_late, reader), reader.request.fail)

    def _answer_late(self, reader: _Reader) -> None:
        name = reader.request.head.name
        if name in self._index.names:
            reader.request.reply(self._index.missing(name))
        else:
            nearest = self._entries.nearest(entry_of(name), MAX_KNOWN)
            waited_s = self._messenger.now() - reader.began
            reader.request.fail(PeerNotFound(entry_of(name), waited_s, nearest))

    def _forget(self, reader: _Reader) -> None:
        if reader.timer is not None:
            reader.timer.cancel()
        name = reader.request.head.name
        waiting = self._waiting.get(name, {})
        waiting.pop(reader, None)
        if not waiting:
            self._waiting.pop(name, None)

    def _on_list(self, request: Request) -> None:
        self._do(lambda: request.reply(self._index.contents()), request.fail)

    def _on_held(self, notice: Request) -> None:
        notice.check_claim(notice.head.holder.process_id, "it holds weights")
        self._index.hold(notice.head)

    def _on_lost(self, process_id: str) -> None:
        for name in self._index.names_of(process_id):
            self._do(partial(self._lose, name, process_id), lambda _error: None)

    def _lose(self, name: str, process_id: str) -> None:
        if name not in self._index.names:
            return
        error, notices = self._index.lose(name, process_id, self._messenger.peers.why_lost(process_id))
        self._tell(notices)
        if name not in self._index.names:
            self._entries.discard(entry_of(name))
            if error is not None:
                self._gone.note(entry_of(name), error.reason)
        if error is not None:
            for reader in list(self._waiting.get(name, ())):
                self._fail(reader, error)

    def _do(self, step: Callable[[], object], fail: Callable[[BaseException], object]) -> None:
        """Take a step; if it needs to know what it does not, that is found out first, and it begins anew."""
        try:
            step()
        except _Unjudged as unjudged:
            if unjudged.size_bytes <= JUDGED_HERE_BYTES:
                self._note(unjudged, unjudged.find())
                self._do(step, fail)
            else:
                self._messenger.run_beside(self._judge_beside, unjudged, partial(self._do, step, fail))
        except Exception as error:  # noqa: BLE001 - whoever asked is told
            error.__context__ = None  # what had to be found out first is no cause of it
            fail(error)

    def _judge_beside(self, unjudged: _Unjudged, again: Callable[[], None]) -> None:
        found = unjudged.find()

        def note() -> None:
            self._note(unjudged, found)
            again()

        self._messenger.submit(note)

    def _note(self, unjudged: _Unjudged, found: Any) -> None:
        self._verdicts[unjudged.key] = unjudged.processes, found
        if len(self._verdicts) > MAX_JUDGED:
            self._verdicts.popitem(last=False)

    def _found(self, find: _Find, layouts: Layouts, processes: Sequence[str]) -> Any:
        """Return what is known of layouts; what names processes is known of these alone."""
        key = find, frozenset(layouts)
        of, found = self._verdicts.get(key, ([], None))
        names_them = any(type(each) is Problem for each in found or ())
        if key not in self._verdicts or (names_them and of != [*processes]):
            raise _Unjudged(find, layouts, processes)
        self._verdicts.move_to_end(key)
        return found


def open_index(session: Session) -> IndexService:
    """Make the index of a job, in its home; `session.service(open_index)` is always the same."""
    levels = session.service(Levels)
    levels.add(READ, lambda _name: (session.name, None, {}))
    levels.add(JOB_READ, partial(_ask_readers, session))
    known = session.members.known
    return IndexService(session.messenger, lambda group: known[group].ranks if group in known else ())


def _ask_readers(session: Session, name: str) -> Promise[WeightsUse]:
    found: Promise[WeightsUse] = Promise()

    def tell(asked: Promise[Poll]) -> None:
        # Processes that have nothing to do with weights answer by an error.
        heads = asked.result(0).heads
        readers = {process: read for process, read, _ in heads if read is not None}
        found.set_result(WeightsUse(readers, {process: copies for process, _, copies in heads if copies}))

    session.service(Survey).ask(Inquiry(READ, READERS_TIMEOUT_S, name)).add_done_callback(tell)
    return found


def open_index_when_needed(session: Session) -> None:
    """Have the index there as soon as anybody publishes or asks for weights."""
    session.messenger.serve_when_asked(INDEX, lambda: session.service(open_index))
