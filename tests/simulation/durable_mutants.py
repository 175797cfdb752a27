"""Durable channels of the product that forget one rule each, in what they write, and in what is said around it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import count

from msgspec.structs import replace
from product_mutants import Mutant

from rlinf_scheduler import record_log
from rlinf_scheduler.durable import journal
from rlinf_scheduler.durable.durable_channel import DurableChannel
from rlinf_scheduler.durable.journal import Journal
from rlinf_scheduler.durable.journaled import WriteAheadRuntime
from rlinf_scheduler.durable.reconnecting_transport import ReconnectingTransport
from rlinf_scheduler.durable.streams import Resumption, ServerStreams, Stream
from rlinf_scheduler.queueing.state import ChannelState


def _nothing(_whole):
    return lambda *_args, **_options: None


# -- what clients and servers say again -----------------------------------------------------------


def _forgets_numbers(_apply):
    def apply(streams, client, number, heard):
        known = client in streams._streams
        if known:
            streams._taken[client] = number
            streams._streams[client].confirm(heard)
        return known

    return apply


def _says_nothing_again(resume):
    def silent(streams, client, heard, *, begun):
        resumption = resume(streams, client, heard, begun=begun)
        return resumption and Resumption(resumption.heard, [])

    return silent


def _believes_the_lost(on_look_up):
    """Who was given up, and all that it had begun undone, goes on as if nothing had been."""

    def believe(runtime, request, look_up):
        on_look_up(runtime, request, replace(look_up, begun=False))

    return believe


# -- the journal ------------------------------------------------------------------------------------


def _without_syncing(append):
    """What is answered lies in the memory of the machine."""

    def unsafe(self, head, frames):
        to_disk, self._to_disk = self._to_disk, False
        append(self, head, frames)
        self._to_disk = to_disk

    return unsafe


def _answers_first(append):
    """A block is written with the one after it."""
    late = {}

    def later(self, head, frames):
        before = late.pop(self, None)
        if before is not None:
            append(self, *before)
        late[self] = head, [bytes(frame) for frame in frames]

    return later


def _hides_that_it_failed(append):
    """A block for which there was no room was written."""

    def hide(self, head, frames):
        with suppress(OSError):
            append(self, head, frames)

    return hide


def _leaves_the_name_to_the_system(append):
    def unnamed(self, head, frames):
        self._is_unnamed = False
        append(self, head, frames)

    return unnamed


def _without_what_came_beside(finish):
    return lambda self, new, _since: finish(self, new, self.size_bytes)


def _without_what_came_while_it_was_written(_copy_since):
    return lambda _self, _new, _since, _until: None


def _takes_a_torn_tail(_read_record):
    """A record is whole if its header is."""

    def torn(disk, file, position, size):
        header = disk.pread(file, record_log.HEADER.size, position)
        if len(header) < record_log.HEADER.size:
            return None
        length = record_log.HEADER.unpack(header)[0]
        start, end = position + record_log.HEADER.size, position + record_log.HEADER.size + length
        if end > size or not length:
            return None
        return record_log._record_of(disk.read(file, start, length)), end

    return torn


def _leaves_a_torn_tail(read):
    """What was cut off stays there, and is written behind."""

    def leave(self):
        truncate, self._disk.ftruncate = self._disk.ftruncate, lambda _fd, _size: None
        yield from read(self)
        self._disk.ftruncate = truncate
        self.size_bytes = self._disk.fstat(self._fd).st_size

    return leave


# -- turns --------------------------------------------------------------------------------------------


def _does_first(commit):
    """What has come happens before it is written."""

    def eager(self):
        append, self._journal.append = self._journal.append, lambda *_block: None
        written = []
        self._journal.append = lambda head, frames: written.append((head, [bytes(each) for each in frames]))
        try:
            commit(self)
        finally:
            self._journal.append = append
        for block in written:
            self._messenger.call_later(1e-4, partial(append, *block))

    return eager


def _forgets_timers(_resume_timers):
    return lambda self, _dues: self._timers.clear()


def _rings_everything_early(_arm):
    def early(self, timer):
        timer.due = self._now
        timer.real = self._messenger.call_later(0, partial(self._on_time, timer))

    return early


def _goes_on_when_it_cannot_write(_on_failed):
    """Clients wait for ever."""
    return lambda _self, _error: None


def _counts_leases_anew(restore):
    return lambda state, record, payloads: restore(state, replace(record, last_number=0), payloads)


def _without_what_was_said(look):
    def silent(self):
        world, said = look(self)
        lines = [line._replace(kept=[]) for line in world.lines]
        return world._replace(lines=lines), [[] for _ in said]

    return silent


# -- clients ------------------------------------------------------------------------------------------


def _never_seeks(_seek):
    return lambda self: setattr(self, "_found", False)


def _drops_some(send):
    numbers = count()

    def drop(self, number, message):
        if next(numbers) % 6 != 5:
            send(self, number, message)

    return drop


DURABLE_MUTANTS = {
    "forgets what clients have said": Mutant(ServerStreams, "apply", _forgets_numbers),
    "says nothing again after a death": Mutant(ServerStreams, "resume", _says_nothing_again),
    "believes a client that was given up": Mutant(WriteAheadRuntime, "_on_look_up", _believes_the_lost),
    "keeps nothing of what it has said": Mutant(Stream, "after", lambda _after: lambda _stream, _number: []),
    "answers before its journal is on the disk": Mutant(Journal, "append", _without_syncing),
    "answers before it writes": Mutant(Journal, "append", _answers_first),
    "hides that its journal cannot be written": Mutant(Journal, "append", _hides_that_it_failed),
    "does not sync the name of its journal": Mutant(Journal, "append", _leaves_the_name_to_the_system),
    "loses what happens while its journal takes its place": Mutant(
        Journal, "finish", _without_what_came_beside
    ),
    "loses what happens while its journal is written whole": Mutant(
        Journal, "copy_since", _without_what_came_while_it_was_written
    ),
    "takes a torn record": Mutant(journal, "read_record", _takes_a_torn_tail),
    "writes behind a torn block": Mutant(Journal, "read", _leaves_a_torn_tail),
    "does first and writes then": Mutant(WriteAheadRuntime, "_commit", _does_first),
    "forgets timers at a restart": Mutant(WriteAheadRuntime, "resume_timers", _forgets_timers),
    "lets timers ring early": Mutant(WriteAheadRuntime, "_arm", _rings_everything_early),
    "gives nobody up who does not come back": Mutant(WriteAheadRuntime, "_give_up_absent", _nothing),
    "writes no reply into its snapshots": Mutant(WriteAheadRuntime, "look", _without_what_was_said),
    "goes on when it cannot write": Mutant(DurableChannel, "_on_failed", _goes_on_when_it_cannot_write),
    "counts leases anew": Mutant(ChannelState, "restore", _counts_leases_anew),
    "never seeks another process": Mutant(ReconnectingTransport, "_seek", _never_seeks),
    "drops some of what it says": Mutant(ReconnectingTransport, "_send", _drops_some),
}
