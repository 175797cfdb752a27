"""What this process lends to readers on other machines, and what it pulls from there.

NIXL is asked on a thread of its own: to load it, to make an agent and to register memory take up to seconds. Whatever
fails, the reader asks for the object once more, as bytes.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Bytes
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.pull.agent import Agent, PullError, nixl_stack
from rlinf_scheduler.comm.pull.records import Pulling, PullOffer, PullStats, Tell
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.serial_thread import SerialThread
from rlinf_scheduler.comm.shm.blocks import Block
from rlinf_scheduler.comm.shm.foreign import ForeignArena
from rlinf_scheduler.comm.shm.sent_payload import Payload

logger = Reporter(__name__)

# A reader says that it needs what had this number no longer.
ENDED = "pull.ended"
# A piece that takes longer stands still: the slowest link there is carries the largest in a sixth of it.
STALL_S = 10.0
# So often it is seen what has arrived; more seldom what was given up, and whether memory is wanted back.
POLL_S, LOOK_EVERY_S = 0.001, 0.5


class _Registered(NamedTuple):
    """A block of this process's arena that NIXL knows, until another use of it needs more."""

    number: int
    size_bytes: int
    rows: Any
    metadata: bytes
    user: weakref.ref[Block]


@dataclass(slots=True, eq=False)
class _ComingPiece:
    """A piece on its way here, by NIXL's `read`, into a block that stays as long as that may write to it.

    With a `why` it is given up, and so is its promise.
    """

    source: Endpoint
    offer: PullOffer
    block: Block
    offset: int
    size_bytes: int
    began: float
    promise: Promise[None] = field(default_factory=Promise)
    read: int = 0
    why: str = ""


class Pulls:
    """Lends and pulls, in one process, whose machine has `address` in the cluster."""

    def __init__(self, messenger: Messenger, address: str) -> None:
        self.stats = PullStats(nixl_stack())
        self._messenger = messenger
        self._address = address
        self._thread = SerialThread()
        self._next_number = itertools.count(1).__next__
        # What a reader may be reading, by its process and the offer's number.
        self._lent: dict[tuple[str, int], Payload] = {}
        self._said: set[str] = set()
        # Of the thread that pulls.
        self._agent: Agent | None = None
        self._arena: ForeignArena | None = None
        self._registered: dict[int, _Registered] = {}
        # Registrations of other processes, by their addresses.
        self._known: dict[str, dict[int, int]] = {}
        # What reads may still write to, given up or not.
        self._coming: list[_ComingPiece] = []
        messenger.serve(ENDED, self._on_ended, int)
        messenger.on_peer_lost(self._on_peer_lost)
        messenger.at_end(lambda: self._thread.put(self._close))
        if not self.stats.stack:
            self._say("nixl is not installed here; pip install 'nixl>=1.5.1,<1.6'")

    # -- lending: the I/O thread -----------------------------------------------------------------

    def offer(self, payload: Payload, reader_id: str, stack: str, tell: Tell) -> None:
        """Offer an object to a reader that pulls with `stack`; it is kept until the reader has ended."""
        own, block, name = self.stats.stack, payload.block, self._messenger.name
        if stack != own:
            tell(f"'{name}' has {own or 'no nixl'}, and its reader {stack}", None)
        elif block is None:
            tell(f"'{name}' has no room for it in shared memory", None)
        else:
            registered = self._thread.ask(partial(self._offer_of, block))
            offered = partial(self._offered, payload, reader_id, tell)
            registered.add_done_callback(lambda answer: self._messenger.submit(partial(offered, answer)))

    def _offered(self, payload: Payload, reader_id: str, tell: Tell, answer: Promise[PullOffer]) -> None:
        error = answer.exception()
        if error is not None:
            self._say(str(error))
            tell(f"'{self._messenger.name}': {error}", None)
            return
        key = reader_id, answer.result().number
        self._lent[key] = payload

        def on_taken(taken: bool) -> None:
            if not taken:
                self._lent.pop(key, None)

        if not tell(answer.result(), on_taken):
            on_taken(False)

    def _on_ended(self, notice: Request) -> None:
        self._lent.pop((notice.peer_id, notice.head), None)

    def _on_peer_lost(self, process_id: str) -> None:
        for key in [key for key in self._lent if key[0] == process_id]:
            del self._lent[key]
        self._thread.put(partial(self._lose, process_id))

    # -- pulling: the I/O thread -----------------------------------------------------------------

    def pull(
        self, source: Endpoint, offer: PullOffer, block: Block, first: memoryview, last: memoryview
    ) -> Promise[None]:
        """Read a piece of an object into a block of this process, from one part of it to another."""
        begin, end = (_address(part) - _address(block.memory) for part in (first, last))
        size_bytes = end + len(last) - begin
        coming = _ComingPiece(source, offer, block, begin, size_bytes, self._messenger.now())
        self._thread.put(partial(self._begin, coming))
        return coming.promise

    def _pulled(self, coming: _ComingPiece, error: Exception | None) -> None:
        stats = self.stats
        if error is not None:
            self.fell_back(coming.source, str(error))
            coming.promise.set_exception(error)
            return
        if not stats.pieces:
            logger.info("large objects of other machines are pulled by %s", stats.stack)
        self.stats = replace(stats, pieces=stats.pieces + 1, size_bytes=stats.size_bytes + coming.size_bytes)
        coming.promise.set_result(None)

    def fell_back(self, source: Endpoint, why: str) -> None:
        """Count a piece that came as bytes and was to be pulled."""
        self.stats = replace(self.stats, fell_back=self.stats.fell_back + 1)
        self._say(f"{why} (from '{self._messenger.peer_name(source.process_id)}')")

    def _say(self, why: str) -> None:
        self.stats = replace(self.stats, why=why)
        if why not in self._said:
            self._said.add(why)
            logger.warning("large objects between machines are not pulled, and go through sockets: %s", why)

    # -- the thread that pulls -------------------------------------------------------------------

    def _made(self) -> tuple[Agent, ForeignArena]:
        """The agent, and this process's own shared memory with a place in its holder table; made with the first use."""
        if self._agent is None:
            self._agent = Agent(self._messenger.endpoint.process_id, self._address)
        if self._arena is None:
            self._arena = self._messenger.payloads.own_arena()
            self._later(LOOK_EVERY_S, self._give_back)
        return self._agent, self._arena

    def _register(self, block: Block) -> _Registered:
        """Return the registration of a block in use; it is kept, and the block keeps its pages (decision 036)."""
        agent, arena = self._made()
        known = self._registered.get(block.index)
        if known is None or known.size_bytes < block.room_bytes:
            if known is not None:
                self._deregister(block.index)
            # First: once a card reads its pages, they must not be given back.
            arena.seat.table.pin(arena.seat.slot, block.index)
            try:
                rows, metadata = agent.register(_address(block.memory), block.room_bytes)
            except BaseException:
                arena.seat.table.unpin(arena.seat.slot, block.index)
                raise
            known = _Registered(self._next_number(), block.room_bytes, rows, metadata, weakref.ref(block))
        self._registered[block.index] = known = known._replace(user=weakref.ref(block))
        return known

    def _deregister(self, index: int) -> None:
        agent, arena = self._made()
        # If it is refused, the block keeps its pages.
        agent.deregister(self._registered.pop(index).rows)
        arena.seat.table.unpin(arena.seat.slot, index)

    def _offer_of(self, block: Block) -> PullOffer:
        known = self._register(block)
        return PullOffer(self._next_number(), known.number, known.metadata, _address(block.memory))

    def _begin(self, coming: _ComingPiece) -> None:
        source_id, offer, here = coming.source.process_id, coming.offer, _address(coming.block.memory)
        try:
            agent, _ = self._made()
            self._know(agent, source_id, offer)
            self._register(coming.block)
            there, here = offer.address + coming.offset, here + coming.offset
            coming.read = agent.begin(source_id, there, here, coming.size_bytes)
        except Exception as error:  # noqa: BLE001 - whatever it is, the piece comes as bytes
            self._ended(coming, error)
            return
        coming.began = self._messenger.now()
        self._coming.append(coming)
        self._go_on(agent, coming)

    def _know(self, agent: Agent, process_id: str, offer: PullOffer) -> None:
        known = self._known.setdefault(process_id, {})
        if known.get(offer.address) == offer.registration:
            return
        if offer.address in known:
            if any(each.source.process_id == process_id for each in self._coming):
                raise PullError("its memory was registered anew, and more of it is on its way")
            agent.remove(process_id)
            known.clear()
        try:
            agent.add(offer.metadata)
        except PullError:
            agent.remove(process_id)
            known.clear()
            raise
        known[offer.address] = offer.registration

    def _go_on(self, agent: Agent, coming: _ComingPiece) -> None:
        try:
            if agent.is_done(coming.read):
                self._ended(coming)
            elif coming.why or self._messenger.now() - coming.began > STALL_S:
                self._give_up(coming, coming.why or f"a piece has not arrived in {STALL_S:.1f} s")
                self._later(LOOK_EVERY_S, partial(self._go_on, agent, coming))
            else:
                self._later(POLL_S, partial(self._go_on, agent, coming))
        except PullError as error:
            self._ended(coming, error)

    def _give_up(self, coming: _ComingPiece, why: str) -> None:
        if not coming.why:
            coming.why = why
            self._messenger.submit(partial(self._pulled, coming, PullError(why)))

    def _ended(self, coming: _ComingPiece, error: Exception | None = None) -> None:
        # Not before: what is read late must be the object still, for it goes where the bytes go.
        self._messenger.notify(coming.source, ENDED, coming.offer.number)
        if coming in self._coming:
            self._coming.remove(coming)
            if self._agent is not None:
                self._agent.release(coming.read)
        if not coming.why:
            self._messenger.submit(partial(self._pulled, coming, error))

    def _later(self, delay_s: float, step: Callable[[], None]) -> None:
        def wait() -> None:
            self._messenger.call_later(delay_s, partial(self._thread.put, step))

        self._messenger.submit(wait)

    def _lose(self, process_id: str) -> None:
        theirs = [coming for coming in self._coming if coming.source.process_id == process_id]
        for coming in theirs:
            self._give_up(coming, "its process is gone")
        if self._known.pop(process_id, None) is not None and self._agent and not theirs:
            self._agent.remove(process_id)

    def _give_back(self) -> None:
        """Deregister what is not in use, if this process is short of memory or has not used any for long."""
        if self._arena is not None:
            if self._arena.unpin_is_wanted():
                for index in [index for index, known in self._registered.items() if known.user() is None]:
                    self._deregister(index)
            self._later(LOOK_EVERY_S, self._give_back)

    def _close(self) -> None:
        if self._agent is not None and self._coming:
            self._agent.keep_for_ever()
        else:
            for index in list(self._registered):
                self._deregister(index)
        self._agent = self._arena = None
        self._thread.stop()

    def abandon(self) -> None:
        """Leave what is the parent's alone, in a forked child."""
        if self._agent is not None:
            self._agent.keep_for_ever()


def _address(memory: memoryview | Bytes) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def begin_to_pull(messenger: Messenger) -> None:
    """Let a process lend and pull large objects, if it listens for other machines."""
    address = messenger.endpoint.tcp_address.removeprefix("tcp://").rpartition(":")[0]
    if address:
        made = Pulls(messenger, address)
        messenger.pulls = Pulling(lambda: made.stats, made.offer, made.pull, made.fell_back, made.abandon)
