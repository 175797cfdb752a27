"""The processes that one process talks with: what leads to each, who comes, and who is gone."""

from __future__ import annotations

import math
import socket
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.forking import FORKED
from rlinf_scheduler.comm.framing import Envelope, Message
from rlinf_scheduler.comm.loop import IoLoop, run_guarded
from rlinf_scheduler.comm.peer import SelfTransport
from rlinf_scheduler.comm.requests import Peer
from rlinf_scheduler.comm.transport.handshake import Introduction
from rlinf_scheduler.comm.transport.peer_session import Hello, Loss, PeerSessionError, Verdict, Welcome
from rlinf_scheduler.comm.transport.peer_transport import PeerTransport
from rlinf_scheduler.comm.transport.sockets import Sockets

# So many that are gone are remembered.
MAX_LOST = 1 << 16


@dataclass(frozen=True, slots=True)
class LostPeer:
    """A process that is gone.

    Attributes:
        name: how it was called; "" where that was not known.
        reason: why, or how that showed.
        loss: in which way.
        num_written: how many messages it may have got, of those to it; infinity where that is not known.
    """

    name: str
    reason: str
    loss: Loss
    num_written: float = math.inf


class PeersEvents(Protocol):
    """Who hears of a process's peers, on the I/O thread."""

    def on_connected(self, endpoint: Endpoint) -> None:
        """A process of this machine is connected for the first time."""

    def on_messages(self, peer: Peer, messages: list[Message]) -> None:
        """Messages of a peer, in order."""


class Peers:
    """All peers of one process, itself among them; a dead one is none any more. On the I/O thread, but for its making.

    Args:
        sockets: makes what leads to others, given the `judge` of those that come.
        grace_s: how long one may be unreachable before it counts as dead, in seconds.
        events: who hears of them.

    Attributes:
        by_id: the peers, by process id.
        sockets: what leads to others.
        lost: those that are gone, by process id; one that is connected again is none of them.
        fenced: why those that were declared dead were, by process id.
        on_lost: called with the process id of each that is gone.
        on_fenced: called with the reason when another says that this process was declared dead.
        closed: why this process takes no part any more; "" as long as it does.
    """

    def __init__(
        self, loop: IoLoop, sockets: Callable[..., Sockets], grace_s: float, events: PeersEvents
    ) -> None:
        self.by_id: dict[str, Peer] = {}
        self.lost: OrderedDict[str, LostPeer] = OrderedDict()
        self.fenced: OrderedDict[str, str] = OrderedDict()
        self.on_lost: list[Callable[[str], None]] = []
        self.on_fenced: list[Callable[[str], None]] = []
        self.closed = ""
        self._loop = loop
        self._grace_s = grace_s
        self._events = events
        self.sockets = sockets(judge=self)

    def at(self, endpoint: Endpoint) -> Peer:
        """The peer that an endpoint belongs to; a connection is made if there is none."""
        peer = self.by_id.get(endpoint.process_id)
        if peer is not None:
            return peer
        fenced = self.fenced.get(endpoint.process_id, "")
        problem = self.closed or fenced or self.sockets.why_unreachable(endpoint)
        if problem:
            peer = self._new_peer(endpoint.process_id)
            peer.lost = problem
            if fenced and peer.process_id in self.lost:
                peer.name = self.lost[peer.process_id].name
            if not self.closed:
                self._loop.submit(lambda: self._report_lost(endpoint.process_id))
            return peer
        peer, transport = self._add(endpoint)
        transport.poll()
        return peer

    def add_self(self, process_id: str, name: str) -> None:
        """This process is a peer of its own."""
        peer = self.by_id[process_id] = self._new_peer(process_id)
        peer.name = name
        peer.transport = SelfTransport(self._loop.submit, partial(self._events.on_messages, peer))

    def transport_to(self, process_id: str) -> PeerTransport | None:
        """What leads to another process that is a peer."""
        peer = self.by_id.get(process_id)
        return peer.transport if peer is not None and isinstance(peer.transport, PeerTransport) else None

    def transports(self) -> list[PeerTransport]:
        """What leads to the others."""
        return [peer.transport for peer in self.by_id.values() if isinstance(peer.transport, PeerTransport)]

    def num_sent(self, process_id: str) -> int:
        """How many messages were handed over for a process, the last of them having that number; on the I/O thread."""
        peer = self.by_id.get(process_id)
        return 0 if peer is None else peer.num_sent

    def num_taken(self, process_id: str) -> int:
        """How many of these it has acknowledged; a process that is stopped acknowledges none. On the I/O thread."""
        transport = self.transport_to(process_id)
        return (
            transport.session.num_queued - transport.session.num_unacknowledged
            if transport is not None
            else 0
        )

    def cut_off(self, process_id: str, for_s: float = 0.0) -> str:
        """Why a process cannot be reached, for `for_s` seconds now; "" while it can, also if it does not answer."""
        transport = self.transport_to(process_id)
        return "" if transport is None else transport.session.cut_off(self._loop.now(), for_s)

    def doubt(self, process_id: str, silent_s: float) -> None:
        """Try whether a process can be reached that has said nothing for a while; on the I/O thread.

        What comes from its machine's kernel does not show it: that may repeat itself, because it hears nothing.
        """
        transport = self.transport_to(process_id)
        if transport is not None:
            transport.doubt(silent_s)

    def lose(self, peer: Peer, reason: str, loss: Loss = Loss.BROKEN) -> None:
        """A process is gone: end what waits for it, and tell whoever asked to be told."""
        if self.by_id.get(peer.process_id) is peer:
            del self.by_id[peer.process_id]
            num_written = (
                peer.transport.session.num_written if isinstance(peer.transport, PeerTransport) else math.inf
            )
            self._note_lost(peer.process_id, LostPeer(peer.name, reason, loss, num_written))
            if peer.transport is not None:
                peer.transport.close()
            peer.lost = reason
            peer.requests.lose(reason)
            self._report_lost(peer.process_id)
            if loss is Loss.FENCED:
                self.tell_fenced(reason)

    def fence(self, process_id: str, lost: LostPeer) -> None:
        """A process was declared dead: it is lost, and never taken again, even if it lives and comes back."""
        self.fenced[process_id] = lost.reason
        _bound(self.fenced)
        peer = self.by_id.get(process_id)
        if peer is not None:
            peer.name = peer.name or lost.name
            self.lose(peer, lost.reason, lost.loss)
        elif process_id not in self.lost:
            self._note_lost(process_id, lost)
            self._report_lost(process_id)

    def why_lost(self, process_id: str) -> str:
        """Why a process is gone."""
        lost = self.lost.get(process_id)
        return lost.reason if lost is not None else "its process is gone"

    def never_left(self, process_id: str, number: int) -> bool:
        """Whether a process is gone to which the message of that number was never written; see `num_sent`.

        The number is 0 of a message that was handed over when the process was known to be gone.
        """
        lost = self.lost.get(process_id)
        return lost is not None and (not number or number > lost.num_written)

    def tell_fenced(self, reason: str) -> None:
        """This process was declared dead."""
        for callback in list(self.on_fenced):
            run_guarded(callback, reason)

    def _note_lost(self, process_id: str, lost: LostPeer) -> None:
        self.lost[process_id] = lost
        _bound(self.lost)

    def end(self, reason: str) -> None:
        """This process leaves: end what waits for anybody."""
        self.closed = reason
        peers, self.by_id = self.by_id, {}
        for peer in peers.values():
            if peer.transport is not None:
                peer.transport.close()
            peer.lost = reason
            run_guarded(partial(peer.requests.lose, reason, closing=True))

    def abandon(self) -> None:
        """Give up, in a forked child, what its parent goes on to use."""
        self.closed = FORKED
        for peer in self.by_id.values():
            peer.lost = FORKED
            if peer.transport is not None:
                peer.transport.abandon()
        self.sockets.abandon()

    def _new_peer(self, process_id: str) -> Peer:
        return Peer(process_id, self._loop.submit, self._loop.run_soon)

    def _add(self, endpoint: Endpoint) -> tuple[Peer, PeerTransport]:
        peer = self._new_peer(endpoint.process_id)
        heard = _TransportHeard(self, peer, self._events)
        transport = peer.transport = PeerTransport(self._loop, self.sockets, endpoint, heard, self._grace_s)
        self.by_id[peer.process_id] = peer
        return peer, transport

    def _report_lost(self, process_id: str) -> None:
        for callback in list(self.on_lost):
            run_guarded(callback, process_id)

    # -- those who come ---------------------------------------------------------------------------

    def judge(self, who: Introduction, hello: Hello) -> Welcome:
        """What to make of a process that has proved who it is."""
        peer = self.by_id.get(who.endpoint.process_id)
        transport = self.transport_to(who.endpoint.process_id)
        fenced = self.fenced.get(who.endpoint.process_id)
        if fenced is not None:
            return Welcome(Verdict.FENCED, reason=fenced)
        if self.closed or (peer is not None and transport is None):
            return Welcome(Verdict.UNKNOWN)
        if peer is not None and transport is not None:
            verdict = transport.session.judge(hello, self._loop.now())
            if verdict is Verdict.REPLACED:
                self.lose(peer, "it lost this process and came back")
                transport = None
            elif verdict is not Verdict.TAKEN:
                return Welcome(verdict)
        if transport is None:
            if hello.known:
                return Welcome(Verdict.UNKNOWN)
            peer, transport = self._add(who.endpoint)
        try:
            return transport.accept(hello, who.name)
        except PeerSessionError as error:
            transport.session.left(str(error))
            self._loop.submit(transport.poll)
            return Welcome(Verdict.UNKNOWN)

    def came(self, who: Introduction, welcome: Welcome, connection: socket.socket) -> None:
        """Use the connection of a process that was taken, unless another one came first."""
        transport = self.transport_to(who.endpoint.process_id)
        if transport is None or not transport.awaits(welcome):
            connection.close()
        else:
            transport.adopt(connection)

    def broke(self, who: Introduction, welcome: Welcome, reason: str) -> None:
        """Its connection broke after it was taken and before it came."""
        transport = self.transport_to(who.endpoint.process_id)
        if transport is not None and transport.awaits(welcome):
            transport.lost_before_adopted(reason)


def _bound(notes: OrderedDict[str, Any]) -> None:
    while len(notes) > MAX_LOST:
        notes.popitem(last=False)


class _TransportHeard:
    """What is heard of one peer's transport."""

    def __init__(self, peers: Peers, peer: Peer, events: PeersEvents) -> None:
        self._peers = peers
        self._peer = peer
        self._events = events
        self._met = False

    def on_connected(self, transport: PeerTransport) -> None:
        """There is a connection, the first or another."""
        self._peer.name = transport.name
        if not self._met:
            self._met = True
            self._peers.lost.pop(self._peer.process_id, None)
            if transport.kind == "unix":
                self._events.on_connected(transport.endpoint)

    def places_for(self, envelope: Envelope) -> Sequence[memoryview]:
        """Where the frames of a message that has begun to arrive go; nothing if they are to get new memory."""
        return self._peer.requests.places_for(envelope)

    def on_messages(self, messages: list[Message]) -> None:
        """Messages arrived, in order."""
        self._events.on_messages(self._peer, messages)

    def on_dead(self, _transport: PeerTransport, reason: str, loss: Loss) -> None:
        """The other process is gone; nothing comes after this."""
        self._peers.lose(self._peer, reason, loss)
