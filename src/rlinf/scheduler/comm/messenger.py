"""One messenger a process: requests, notices and answers to and from any other process of the cluster."""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from rlinf.scheduler.comm import framing
from rlinf.scheduler.comm.endpoint import Endpoint, local_machine_id
from rlinf.scheduler.comm.forking import FORKED, forked_error, on_fork_in_child
from rlinf.scheduler.comm.framing import Buffer, Message
from rlinf.scheduler.comm.loop import READABLE, IoLoop, Timer
from rlinf.scheduler.comm.parcels import Parcels
from rlinf.scheduler.comm.peer import Peer, Request, RequestFuture, run_guarded
from rlinf.scheduler.comm.rundir import SOCKET_NAME, RunDirectory
from rlinf.scheduler.comm.secret import ClusterSecret
from rlinf.scheduler.comm.shm import default_limit_bytes
from rlinf.scheduler.comm.transport.handshake import Handshake
from rlinf.scheduler.comm.transport.link import Identity, Link
from rlinf.scheduler.comm.transport.self_link import SelfLink
from rlinf.scheduler.comm.transport.tcp_transport import TcpTransport
from rlinf.scheduler.comm.transport.unix_transport import UnixListener
from rlinf.scheduler.errors import CommError, CommTimeout, SchedulerError

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0

_live: weakref.WeakSet[Messenger] = weakref.WeakSet()


class _Unreachable(Exception):
    """There is no way to a peer; the text says why."""


class Messenger:
    """Moves messages between this process and others. One I/O thread, whatever the number of peers.

    Connections are made on first use: a Unix socket to a process of the same machine, CURVE over TCP to any
    other, nothing at all to oneself. Messages to one peer arrive in the order in which they were sent.
    Nothing is read from a process that has not proved that it holds the cluster's secret.

    Args:
        secret: what all processes of the cluster hold.
        name: how this process is called in messages to people, e.g. "rollout:3".
        host: the address that TCP listens on.
        tcp: whether to listen on TCP; needed to talk to other machines, in both directions.
        directory: where names are looked up; kept here for `DirectoryClient`.
        machine_id: overrides the machine's id; a different one on one machine makes peers use TCP.
        arena_limit_bytes: how much shared memory this process may use for what it sends, in bytes; None for
            `arena.default_limit_bytes()`, 0 for none.

    Attributes:
        endpoint: how others reach this process.
        parcels: what makes messages of objects, with shared memory where both sides have it.
    """

    def __init__(
        self,
        secret: ClusterSecret,
        *,
        name: str = "",
        host: str = "127.0.0.1",
        tcp: bool = False,
        directory: Endpoint | None = None,
        machine_id: str | None = None,
        arena_limit_bytes: int | None = None,
    ) -> None:
        # First, for a mistake in it must not leave anything behind.
        arena_bytes = default_limit_bytes() if arena_limit_bytes is None else arena_limit_bytes
        self.name = name
        self.directory = directory
        self._services: dict[str, Callable[[Request], None]] = {}
        self._lost_callbacks: list[Callable[[str], None]] = []
        self._busy: list[Callable[[], bool]] = []
        self._peers: dict[str, Peer] = {}
        self._peers_lock = threading.Lock()
        self._next_id = itertools.count(1).__next__
        self._closed = False
        self._forked = False
        self._loop = IoLoop(f"comm-{name or 'io'}")
        self._run_directory = RunDirectory()
        unix_path = self._run_directory.path / SOCKET_NAME
        self._listener = UnixListener(unix_path, self._loop, lambda: self._identity, self)
        process_id = secrets.token_hex(16)
        self._tcp = self._listen_on_tcp(host, process_id, secret) if tcp else None
        tcp_address = self._tcp.address if self._tcp is not None else ""
        self.endpoint = Endpoint(process_id, machine_id or local_machine_id(), str(unix_path), tcp_address)
        hello = framing.pack(framing.HELLO, 0, name, self.endpoint.to_wire())
        self._identity = Identity(secret, hello)
        self._add_self()
        self.parcels = Parcels(self, arena_bytes)
        _live.add(self)
        on_fork_in_child(_abandon_all)
        self._loop.start()

    def _listen_on_tcp(self, host: str, process_id: str, secret: ClusterSecret) -> TcpTransport:
        try:
            return TcpTransport(host, process_id, secret, self._loop, lambda: self._identity, self)
        except CommError:
            self._listener.close()
            self._run_directory.close()
            self._loop.dispose()
            raise

    # -- serving ---------------------------------------------------------------------------------

    def serve(self, service: str, handler: Callable[[Request], None]) -> None:
        """Let `handler` take the requests for `service`.

        It runs on the I/O thread and must not block. An exception it raises becomes the failure of that
        request.

        Raises:
            ValueError: the service is taken.
        """
        if service in self._services:
            message = f"service '{service}' is served already"
            raise ValueError(message)
        self._services[service] = handler

    def unserve(self, service: str) -> None:
        """Stop serving `service`; later requests for it fail."""
        self._services.pop(service, None)

    def on_peer_lost(self, callback: Callable[[str], None]) -> None:
        """Call `callback(process_id)` on the I/O thread whenever a connected process is gone."""
        self._lost_callbacks.append(callback)

    def stay_while(self, busy: Callable[[], bool]) -> None:
        """Let `close` wait (within its time) while `busy()`: something here is still to be fetched by others."""
        self._busy.append(busy)

    def at_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the I/O thread as one of its last acts: what still waits there has to be told."""
        self._loop.at_end(callback)

    # -- asking ----------------------------------------------------------------------------------

    def request(
        self,
        peer: Endpoint,
        service: str,
        head: Any,
        frames: Sequence[Buffer] = (),
        *,
        snapshot: bool = True,
        timeout_s: float | None = None,
    ) -> RequestFuture:
        """Ask `peer` and give the future of its `Reply`; never blocks; from any thread.

        Args:
            peer: whom.
            service: which of its services.
            head: a small object that msgpack can carry.
            frames: opaque buffers, contiguous; of any size.
            snapshot: the frames' content at the time of this call is what arrives, whatever becomes of the
                memory
                later: what the kernel does not take at once is copied. False saves that copy; then the
                memory must stay as it is until the future is done.
            timeout_s: fail with CommTimeout after this many seconds, and tell the peer; None waits for the
                answer or the peer's end.

        Raises (from the future):
            PeerDied: the process is gone or not reachable.
            CommTimeout: see `timeout_s`.
            CommError: this messenger is closed, or the peer serves nothing of that name.
            BaseException: what the peer failed the request with.
        """
        ident = self._next_id()
        pieces = framing.pack(framing.REQUEST, ident, service, head, frames)
        target = self._peer(peer)
        future = target.ask(ident, pieces, snapshot=snapshot)
        if timeout_s is not None and not future.done():
            started = time.monotonic()

            def expire() -> None:
                waited = time.monotonic() - started
                target.give_up(ident, CommTimeout(service, target.title, waited, "its answer"))

            future.timer = self.call_later(timeout_s, expire)
        return future

    def notify(
        self, peer: Endpoint, service: str, head: Any, frames: Sequence[Buffer] = (), *, snapshot: bool = True
    ) -> None:
        """Send a one-way notice; never blocks; from any thread. What goes to a lost peer is dropped."""
        pieces = framing.pack(framing.NOTIFY, 0, service, head, frames)
        self._peer(peer).send(pieces, snapshot=snapshot)

    def connect(self, peer: Endpoint) -> None:
        """Connect to `peer` now, to be told through `on_peer_lost` when it is gone (or not there at all)."""
        self._peer(peer)

    def transports(self) -> dict[str, str]:
        """How each connected peer is reached: its process id -> "unix", "tcp+curve" or "self".

        "unix+memory": large objects for it lie in this process's shared memory.
        """
        peers = list(self._peers.values())
        return {peer.process_id: self._transport(peer.process_id, peer.link) for peer in peers if peer.link}

    def _transport(self, process_id: str, link: Link) -> str:
        shares = link.transport == "unix" and self.parcels.reads_ours(process_id)
        return f"{link.transport}+memory" if shares else link.transport

    def new_handshake(self) -> Handshake:
        """The dialling side of a handshake, for a connection besides the messenger's own."""
        return Handshake(self._identity.secret, dials=True)

    def peer_name(self, process_id: str) -> str:
        """The name that a connected process gave itself; its id where it is not known."""
        peer = self._peers.get(process_id)
        return peer.title if peer is not None else process_id

    # -- the I/O thread --------------------------------------------------------------------------

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Run `callback` on the I/O thread after `delay_s` seconds; the timer has `cancel()`."""
        self.check_process()
        return self._loop.call_later(delay_s, callback)

    def submit(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the I/O thread soon."""
        self._loop.submit(callback)

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call `callback` on the I/O thread whenever `descriptor` is readable, until `unwatch`."""
        self._loop.register(descriptor, READABLE, lambda _events: callback())

    def unwatch(self, descriptor: int) -> None:
        """Undo `watch`; before the descriptor is closed."""
        self._loop.unregister(descriptor)

    def on_io_thread(self) -> bool:
        """Whether the caller runs on the I/O thread, where nothing may block."""
        return self._loop.is_current()

    def check_process(self) -> None:
        """Raise if this is not the process that made the messenger, before any lock is waited for.

        Raises:
            CommError: this is a forked child.
        """
        if self._forked:
            raise forked_error(f"messenger '{self.name}'")

    @property
    def closed(self) -> bool:
        """Whether this process has left the cluster."""
        return self._closed

    def abandon(self) -> None:
        """Give up, in a forked child, what its parent goes on to use; nothing is said to anybody."""
        self._forked = self._closed = True
        for peer in self._peers.values():
            peer.lost = FORKED
        if self._tcp is not None:
            self._tcp.abandon()
        self._listener.abandon()
        self.parcels.abandon()
        self._run_directory.abandon()
        self._loop.abandon()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send what is queued (for at most `timeout_s`), then drop every connection; what waits fails."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + timeout_s
        self._loop.at_end(self._shut_down)
        self._loop.submit(lambda: self._close_when_flushed(deadline))
        if not self._loop.is_current():
            self._loop.join(timeout_s + 1.0)

    def _close_when_flushed(self, deadline: float) -> None:
        flushed = all(link.idle() for peer in self._peers.values() for link in peer.links)
        if (flushed and not any(busy() for busy in self._busy)) or time.monotonic() >= deadline:
            self._loop.stop()
        else:
            self._loop.call_later(0.005, lambda: self._close_when_flushed(deadline))

    def _shut_down(self) -> None:
        if self._tcp is not None:
            self._tcp.close()
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            for link in peer.links:
                link.close()
            peer.lose("this process closed its messenger", closing=True)
        self._listener.close()
        self.parcels.close()
        self._run_directory.close()
        _live.discard(self)

    # -- peers -----------------------------------------------------------------------------------

    def _peer(self, endpoint: Endpoint) -> Peer:
        self.check_process()
        peer = self._peers.get(endpoint.process_id)
        if peer is not None:
            return peer
        with self._peers_lock:
            peer = self._peers.get(endpoint.process_id)
            if peer is None:
                peer = Peer(endpoint.process_id, self._loop.submit)
                try:
                    peer.link = self._dial(endpoint)
                except _Unreachable as error:
                    peer.lost = str(error)
                    self._loop.submit(lambda: self._report_lost(endpoint.process_id))
                    return peer
                peer.link.peer = peer
                peer.links.append(peer.link)
                self._peers[endpoint.process_id] = peer
        return peer

    def _dial(self, endpoint: Endpoint) -> Link:
        if self._closed:
            raise _Unreachable("this process closed its messenger")
        if endpoint.machine_id == self.endpoint.machine_id and endpoint.unix_path:
            return self._listener.dial(endpoint)
        if self._tcp is None or not endpoint.tcp_address:
            raise _Unreachable(self._why_unreachable(endpoint))
        return self._tcp.link_to(endpoint)

    def _why_unreachable(self, endpoint: Endpoint) -> str:
        if endpoint.machine_id == self.endpoint.machine_id:
            return "it has no Unix socket"
        who = "it" if self._tcp is not None else "this process"
        return f"it is on another machine, and {who} does not use TCP"

    def _add_self(self) -> None:
        peer = Peer(self.endpoint.process_id, self._loop.submit)
        peer.name = self.name
        peer.link = SelfLink(self._loop.submit, lambda messages: self._serve_messages(peer, messages))
        self._peers[peer.process_id] = peer

    def on_hello(self, link: Link, endpoint: Endpoint, name: str) -> None:
        """See `LinkEvents`."""
        known = self._peers.get(endpoint.process_id)
        if known is not None and any(
            other is not link and other.dialled == link.dialled for other in known.links
        ):
            # It connects again, so for it the former connection is over; we have not seen that yet.
            for other in list(known.links):
                other.finish("it connected anew")
        with self._peers_lock:
            peer = self._peers.get(endpoint.process_id)
            if peer is None:
                peer = self._peers[endpoint.process_id] = Peer(endpoint.process_id, self._loop.submit)
                # It came to us first: its connection serves both directions.
                peer.link = link
            if link not in peer.links:
                peer.links.append(link)
        peer.name = name
        link.peer = peer
        if link.transport == "unix":
            self.parcels.on_connected(endpoint)

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        """See `LinkEvents`."""
        self._serve_messages(link.peer, messages)

    def on_lost(self, link: Link, reason: str) -> None:
        """See `LinkEvents`."""
        peer = self._take_link(link)
        if peer is None:
            return
        if not peer.links:
            # Two processes that dialled each other at once have two connections, and the last messages may
            # lie in the one that is still being accepted.
            self._listener.receive_unproven()
        if peer.links:
            # It reports its own end, and with the last one the peer is lost.
            peer.links[0].finish(reason)
        elif self._remove(peer):
            peer.lose(reason)
            self._report_lost(peer.process_id)

    def _take_link(self, link: Link) -> Peer | None:
        # Under the lock: a link may be lost while the thread that dialled it still enters its peer.
        with self._peers_lock:
            peer: Peer | None = link.peer
            if peer is None or link not in peer.links:
                return None
            peer.links.remove(link)
        return peer

    def _remove(self, peer: Peer) -> bool:
        """Whether the peer was there; its last link may have been lost while the others were read."""
        with self._peers_lock:
            if self._peers.get(peer.process_id) is not peer:
                return False
            del self._peers[peer.process_id]
        return True

    def _report_lost(self, process_id: str) -> None:
        for callback in self._lost_callbacks:
            run_guarded(callback, process_id)

    # -- messages --------------------------------------------------------------------------------

    def _serve_messages(self, peer: Peer, messages: list[Message]) -> None:
        self._loop.batching = len(messages) > 1
        for kind, ident, service, head, frames in messages:
            if kind == framing.REQUEST:
                request = Request(peer, ident, head, frames)
                peer.incoming[ident] = request
                self._handle(service, request)
            elif kind == framing.REPLY or kind == framing.REPLY_SETTLE or kind == framing.FAIL:
                peer.take_answer(kind, ident, head, frames)
            elif kind == framing.NOTIFY:
                self._handle(service, Request(peer, 0, head, frames))
            elif kind == framing.CANCEL:
                peer.take_cancel(ident)
            elif kind == framing.SETTLED:
                peer.take_settled(ident)
        self._loop.batching = False

    def _handle(self, service: str, request: Request) -> None:
        handler = self._services.get(service)
        if handler is None:
            known = ", ".join(sorted(self._services)) or "nothing"
            request.fail(CommError(f"'{self.name}' does not serve '{service}'; it serves {known}"))
            return
        try:
            handler(request)
        except SchedulerError as error:
            if not request.fail(error):
                logger.warning("service '%s' failed on a notice: %s", service, error)
        except Exception as error:
            error.add_note(f"in service '{service}' of '{self.name}':\n{traceback.format_exc()}")
            if not request.fail(error):
                logger.exception("service '%s' failed on a notice", service)


def _abandon_all() -> None:
    for messenger in list(_live):
        run_guarded(messenger.abandon)
    _live.clear()
