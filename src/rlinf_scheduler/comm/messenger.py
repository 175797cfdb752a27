"""One messenger a process: requests, notices and answers to and from any other process of the cluster."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from rlinf_scheduler.comm import framing
from rlinf_scheduler.comm.closing import Closing
from rlinf_scheduler.comm.disk import DISK, Disk
from rlinf_scheduler.comm.endpoint import Endpoint, local_machine_id
from rlinf_scheduler.comm.forking import forked_error, on_fork_in_child
from rlinf_scheduler.comm.framing import Buffer, Message
from rlinf_scheduler.comm.loop import READABLE, IoLoop, Timer, run_guarded
from rlinf_scheduler.comm.peer import Request, decode_head
from rlinf_scheduler.comm.peers import Peers
from rlinf_scheduler.comm.port_range import PortRange
from rlinf_scheduler.comm.pull.records import Pulling
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.requests import OpenRequest, Peer, RequestFuture
from rlinf_scheduler.comm.rundir import SOCKET_NAME, RunDirectory
from rlinf_scheduler.comm.secret import ClusterSecret
from rlinf_scheduler.comm.shm.ledger import Ledger, default_limit_bytes
from rlinf_scheduler.comm.shm.payloads import Payloads
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.comm.transport.identity import Identity
from rlinf_scheduler.comm.transport.peer_session import GRACE_S, OVERDUE_S
from rlinf_scheduler.comm.transport.peer_transport import PeerTransport
from rlinf_scheduler.comm.transport.sockets import Sockets
from rlinf_scheduler.errors import CommError, CommTimeout, NotServed, SchedulerError

logger = Reporter(__name__)

CLOSE_TIMEOUT_S = 5.0
CLOSED = "this process has left the cluster"

_live: weakref.WeakSet[Messenger] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class _Service:
    handler: Callable[[Request], None]
    message_type: Any


@dataclass(frozen=True, slots=True)
class Platform:
    """What a messenger asks of the system: the defaults ask the kernel, those of a simulation a simulated one."""

    loop: Callable[..., IoLoop] = IoLoop
    run_directory: Callable[[], RunDirectory] = RunDirectory
    identity: Callable[[ClusterSecret, str], Identity] = Identity
    sockets: Callable[..., Sockets] = Sockets
    payloads: Callable[..., Payloads] = Payloads
    disk: Disk = DISK
    run_beside: Callable[..., None] = run_beside_in_time


class Arrivals(Protocol):
    """Holds back messages that have arrived. On the I/O thread."""

    def hold(self, peer: Peer, messages: list[Message]) -> list[Message]:
        """Return what is to be delivered now; the rest is given to `Messenger.deliver` when it is due."""


def _nothing_to_say(error: BaseException, limit_s: float | None, waited_s: float) -> None:
    """Until somebody knows more."""


class Messenger:
    """Moves messages between this process and others. One I/O thread, whatever the number of peers.

    Connections are made on first use: a Unix socket to a process of the same machine, TLS over TCP to any other,
    nothing at all to oneself. Messages to one peer arrive in the order in which they were sent, each once, also when
    the connection is cut and made anew meanwhile. Nothing is read from a process that has not proved that it holds the
    cluster's secret, and that it is the one it says it is.

    Everything is owned by the I/O thread. Other threads hand over what they want in one step, wait for it with a lock
    of their own, and may be interrupted anywhere.

    Args:
        secret: what all processes of the cluster hold.
        name: how this process is called in messages to people, e.g. "rollout:3".
        host: the address that TCP listens on.
        tcp: whether to listen on TCP; needed to talk to other machines, in both directions.
        encryption: whether what goes over TCP is encrypted; without, processes still prove who they are. The same in
            all processes of a cluster.
        ports: the first and the last of the ports that the job takes; None: any that the kernel chooses.
        unreachable_after_s: how long a process may be unreachable before it counts as dead, in seconds.
        machine_id: overrides the machine's id; a different one on one machine makes peers use TCP.
        arena_limit_bytes: how much shared memory this process may use for what it sends, in bytes; None for
            `shm.default_limit_bytes()`, 0 for none. All processes of the job on a machine together may use
            `default_limit_bytes()`, or what one of them is given here if that is more.
        on_failed: called on the I/O thread with what ended it unexpectedly; everything that waited has failed then.
        platform: what it is made on.

    Attributes:
        endpoint: how others reach this process.
        encryption, ports: see above.
        now: the clock of its timers, in seconds.
        disk: where files lie that outlive this process.
        payloads: what makes messages of objects, with shared memory where both sides have it.
        why_leaving: what who still waits is told when it is closed.
        explain: given what ended a wait (of an operation with another process), its deadline and how long it took, in
            seconds: adds to a deadline's error why it did not end by itself. Somebody above may put it here.
        arrivals: holds back what arrives, as an emulated network does; None: nothing does.
        pulls: what large objects of other machines are pulled with; None: nothing, they come as bytes.
    """

    def __init__(
        self,
        secret: ClusterSecret,
        *,
        name: str = "",
        host: str = "127.0.0.1",
        tcp: bool = False,
        encryption: bool = True,
        ports: PortRange | None = None,
        unreachable_after_s: float = GRACE_S,
        machine_id: str | None = None,
        arena_limit_bytes: int | None = None,
        on_failed: Callable[[BaseException], None] | None = None,
        platform: Platform = Platform(),
    ) -> None:
        # First, for a mistake in it must not leave anything behind.
        arena_bytes = default_limit_bytes() if arena_limit_bytes is None else arena_limit_bytes
        self.name = name
        self.encryption = encryption
        self.ports = ports
        self._services: dict[str, _Service] = {}
        self._unbegun: dict[str, Callable[[], object]] = {}
        self._next_id = itertools.count(1).__next__
        self._forked = False
        self.why_leaving = CLOSED
        self.explain: Callable[[BaseException, float | None, float], None] = _nothing_to_say
        self.arrivals: Arrivals | None = None
        self.pulls: Pulling | None = None
        self._run_beside = platform.run_beside
        self._loop = platform.loop(f"comm-{name or 'io'}", on_failed)
        self.now = self._loop.now
        self.disk = platform.disk
        self._run_directory = platform.run_directory()
        unix_path = self._run_directory.path / SOCKET_NAME
        self._secret = secret
        identity = platform.identity(secret, name)
        try:
            sockets = partial(
                platform.sockets,
                self._loop,
                identity,
                unix_path,
                host if tcp else None,
                encrypts=encryption,
                ports=ports,
            )
            self._peers = Peers(self._loop, sockets, unreachable_after_s, self)
        except BaseException:
            self._run_directory.close()
            self._loop.dispose()
            raise
        machine = machine_id or local_machine_id()
        self.endpoint = Endpoint(
            identity.process_id, machine, str(unix_path), self._peers.sockets.tcp_address
        )
        identity.endpoint = self.endpoint
        self._peers.add_self(self.endpoint.process_id, name)
        self._closing = Closing(self._loop, self._peers)
        self.payloads = platform.payloads(
            self, arena_bytes, lambda: self._ledger(arena_limit_bytes, arena_bytes)
        )
        _live.add(self)
        on_fork_in_child(_abandon_all)
        self._loop.at_end(self._shut_down)
        self._loop.start()

    def _ledger(self, given_bytes: int | None, arena_bytes: int) -> Ledger:
        """What the job's processes take on this machine: together no more than one of them may."""
        job = self._secret.derive(b"memory").hex()[:16]
        limit_bytes = arena_bytes if given_bytes is None else max(arena_bytes, default_limit_bytes())
        return Ledger(self._run_directory.path.parent, job, limit_bytes, self.now)

    # -- serving ---------------------------------------------------------------------------------

    def serve(self, service: str, handler: Callable[[Request], None], message_type: Any = Any) -> None:
        """Let `handler` take the requests for `service`.

        It runs on the I/O thread and must not block. An exception it raises becomes the failure of that
        request.

        Args:
            service: its name.
            handler: takes a request or notice.
            message_type: what heads are, a `msgspec.Struct` or a union of them; None if they say nothing. A head of
                another shape fails its request before the handler sees it.

        Raises:
            ValueError: the service is taken.
        """
        if self._services.setdefault(service, entry := _Service(handler, message_type)) is not entry:
            message = f"service '{service}' is served already"
            raise ValueError(message)

    def serve_when_asked(self, family: str, begin: Callable[[], object]) -> None:
        """Call `begin`, which serves them, once somebody asks for one of the services of a family.

        Args:
            family: what their names begin with, up to the first point.
            begin: called on the I/O thread until it succeeds; what it raises fails the request, and the next one
                calls it again.
        """
        self._unbegun[family] = begin

    def unserve(self, service: str) -> None:
        """Stop serving `service`; later requests for it fail."""
        self._services.pop(service, None)

    def on_peer_lost(self, callback: Callable[[str], None]) -> None:
        """Call `callback(process_id)` on the I/O thread whenever a connected process is gone."""
        self._peers.on_lost.append(callback)

    def off_peer_lost(self, callback: Callable[[str], None]) -> None:
        """Undo `on_peer_lost`."""
        if callback in self._peers.on_lost:
            self._peers.on_lost.remove(callback)

    def stay_while(self, busy: Callable[[], bool]) -> None:
        """Let `close` wait (within its time) while `busy()`: something here is still to be fetched by others."""
        self._closing.busy.append(busy)

    def off_stay(self, busy: Callable[[], bool]) -> None:
        """Undo `stay_while`."""
        if busy in self._closing.busy:
            self._closing.busy.remove(busy)

    def at_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the I/O thread as one of its last acts: what still waits there has to be told."""
        self._loop.at_end(callback)

    def off_end(self, callback: Callable[[], None]) -> None:
        """Undo `at_end`; on the I/O thread."""
        self._loop.off_end(callback)

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
        reply_type: Any = Any,
    ) -> RequestFuture:
        """Ask `peer` and give the future of its `Reply`; never blocks; from any thread.

        Args:
            peer: whom.
            service: which of its services.
            head: a small object that msgpack can carry.
            frames: opaque buffers, contiguous; of any size.
            snapshot: the frames' content at the time of this call is what arrives, whatever becomes of the
                memory later: large ones are copied. False saves that copy; then the memory must stay as it is
                until the future is done.
            timeout_s: fail with CommTimeout after this many seconds, and tell the peer; None waits for the
                answer or the peer's end.
            reply_type: what the answer's head is, as a service's `message_type`.

        Raises (from the future):
            PeerDied: the process is gone or not reachable.
            CommTimeout: see `timeout_s`.
            CommError: this messenger is closed, the peer serves nothing of that name, or an answer of another shape.
            BaseException: what the peer failed the request with.
        """
        self.check_process()
        ident = self._next_id()
        pieces = framing.pack(framing.REQUEST, ident, service, head, frames, snapshot=snapshot)
        process_id = peer.process_id
        future = RequestFuture(
            lambda: self._loop.run_soon(lambda: self._withdraw(process_id, ident)), reply_type
        )
        began = self.now()

        def begin() -> None:
            # Cancelled before it began: nobody is to hear of it.
            if future.done():
                return
            if self._peers.closed:
                future.set_exception(CommError(self._peers.closed))
                return
            try:
                target = self._peers.at(peer)
                target.requests.ask(ident, pieces, future)
            except Exception as error:
                logger.exception("a request to '%s' cannot be sent", service)
                future.set_exception(error)
                return
            if timeout_s is not None and not future.done():
                expire = partial(self._expire, target, ident, service, began)
                on_time = partial(self._on_time, future, began + timeout_s, timeout_s, expire)
                future.timer = self._loop.call_later(began + timeout_s - self.now(), on_time)

        self._loop.run_soon(begin)
        return future

    def _on_time(
        self, future: RequestFuture, due_at: float, timeout_s: float, expire: Callable[[], None]
    ) -> None:
        absent_s = self.now() - due_at
        if absent_s < OVERDUE_S:
            expire()
        else:
            # This process was stopped, and the answer may be here since; how long it was stopped is not known.
            future.timer = self._loop.call_later(min(absent_s, timeout_s), expire)

    def _expire(self, target: Peer, ident: int, service: str, began: float) -> None:
        condition = self.condition(target.process_id)
        what = f"its answer; it is {condition}" if condition else "its answer"
        target.requests.withdraw(ident, CommTimeout(service, target.title, self.now() - began, what))

    def _withdraw(self, process_id: str, ident: int) -> None:
        peer = self._peers.by_id.get(process_id)
        if peer is not None:
            peer.requests.withdraw(ident)

    def notify(
        self, peer: Endpoint, service: str, head: Any, frames: Sequence[Buffer] = (), *, snapshot: bool = True
    ) -> None:
        """Send a one-way notice; never blocks; from any thread. What goes to a lost peer is dropped."""
        self.check_process()
        pieces = framing.pack(framing.NOTIFY, 0, service, head, frames, snapshot=snapshot)
        peers = self._peers
        self._loop.run_soon(lambda: (peers.by_id.get(peer.process_id) or peers.at(peer)).send(pieces))

    def notify_first(self, peer: Endpoint, service: str, head: Any) -> None:
        """The same on the I/O thread, ahead of everything that was handed to it and is not sent yet."""
        pieces = framing.pack(framing.NOTIFY, 0, service, head, (), snapshot=False)
        self._peers.at(peer).send(pieces)

    def connect(self, peer: Endpoint) -> None:
        """Connect to `peer` now, to be told through `on_peer_lost` when it is gone (or not there at all)."""
        self.check_process()

        def begin() -> None:
            self._peers.at(peer)

        self._loop.run_soon(begin)

    @property
    def peers(self) -> Peers:
        """Those that this process talks with, and those that are gone; for use on the I/O thread."""
        return self._peers

    @property
    def run_directory(self) -> Path:
        """This process's private directory."""
        return self._run_directory.path

    def transports(self) -> dict[str, str]:
        """How each connected peer is reached: its process id -> "unix", "tcp+tls", "tcp" or "self".

        "unix+memory": large objects for it lie in this process's shared memory.
        """
        peers = list(self._peers.by_id.values())
        return {
            peer.process_id: self._transport(peer.process_id, peer.transport.kind)
            for peer in peers
            if peer.transport
        }

    def _transport(self, process_id: str, transport: str) -> str:
        shares = transport == "unix" and self.payloads.reads_ours(process_id)
        return f"{transport}+memory" if shares else transport

    def condition(self, process_id: str) -> str:
        """How it stands with a process: "" while it is heard of, else e.g. "unreachable for 6.0 s: silent"."""
        transport = self._peers.transport_to(process_id)
        return "" if transport is None else transport.session.condition(self.now())

    def peer_name(self, process_id: str) -> str:
        """The name that a connected process gave itself; its id where it is not known."""
        peer = self._peers.by_id.get(process_id)
        return peer.title if peer is not None else process_id

    # -- the I/O thread --------------------------------------------------------------------------

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Run `callback` on the I/O thread after `delay_s` seconds; the timer has `cancel()`."""
        self.check_process()
        return self._loop.call_later(delay_s, callback)

    def run_beside(self, function: Callable[..., object], *args: Any) -> None:
        """Run `function(*args)` in a thread of its own, once there is one to be had; from any thread."""
        self._run_beside(self._loop.call_later, function, *args)

    def submit(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the I/O thread soon."""
        self._loop.submit(callback)

    def submit_once(self, callback: Callable[[], None]) -> None:
        """The same, of what does everything that is there to be done: not again if it is the last in line."""
        self._loop.submit_once(callback)

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
        """Raise if this is not the process that made the messenger, before anything is waited for.

        Raises:
            CommError: this is a forked child.
        """
        if self._forked:
            raise forked_error(f"messenger '{self.name}'")

    @property
    def why_closed(self) -> str:
        """Why this process is no part of the cluster any more; "" as long as it is."""
        return self._peers.closed

    def abandon(self) -> None:
        """Give up, in a forked child, what its parent goes on to use; nothing is said to anybody."""
        self._forked = True
        self._peers.abandon()
        self.payloads.abandon()
        if self.pulls is not None:
            self.pulls.abandon()
        self._run_directory.abandon()
        self._loop.abandon()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send what is queued (for at most `timeout_s`), then drop every connection; what waits fails."""
        if self._forked:
            return
        self._loop.submit(lambda: self._closing.begin(self.now() + timeout_s, self.why_leaving))
        if not self._loop.is_current():
            self._loop.join(timeout_s + 1.0)

    def _shut_down(self) -> None:
        failure = self._loop.failure
        self._peers.end(
            self.why_leaving if failure is None else f"this process's I/O thread ended: {failure!r}"
        )
        for end in (self._peers.sockets.close, self.payloads.close, self._run_directory.close):
            run_guarded(end)
        _live.discard(self)

    # -- what peers bring ------------------------------------------------------------------------

    def on_connected(self, endpoint: Endpoint) -> None:
        """A process of this machine is connected for the first time."""
        self.payloads.on_connected(endpoint)

    def on_messages(self, peer: Peer, messages: list[Message]) -> None:
        """Messages of a peer, in order."""
        self.deliver(peer, messages if self.arrivals is None else self.arrivals.hold(peer, messages))

    def deliver(self, peer: Peer, messages: list[Message]) -> None:
        """Give messages of a peer to those that they are for; on the I/O thread."""
        for message in messages:
            kind = message.envelope.kind
            if kind == framing.REQUEST or kind == framing.NOTIFY:
                self._serve(peer, message)
            elif kind == framing.GOODBYE:
                if isinstance(peer.transport, PeerTransport):
                    peer.transport.left("it closed its messenger")
            else:
                # Whatever is wrong with it, those behind it have been counted as received.
                run_guarded(peer.requests.take, message)

    def _serve(self, peer: Peer, message: Message) -> None:
        _, ident, name, head, _ = msgspec.structs.astuple(message.envelope)
        request = OpenRequest(peer, ident, message.frames) if ident else Request(peer, message.frames)
        self.hand_on(request, name, head)

    def hand_on(self, request: Request, name: str, head: msgspec.Raw) -> None:
        """Give a request, or what came inside of another one, to the service that it is for; on the I/O thread."""
        try:
            service = self._services.get(name) or self._begun(name)
            if service is None:
                request.fail(NotServed(self.name, name, self._served()))
                return
            request.head = decode_head(head, service.message_type)
            service.handler(request)
        except msgspec.ValidationError as error:
            if not request.fail(CommError(f"a message to '{name}' has another shape: {error}")):
                logger.warning("a notice to '%s' has another shape: %s", name, error)
        except SchedulerError as error:
            if not request.fail(error):
                logger.warning("service '%s' failed on a notice: %s", name, error)
        except Exception as error:
            if not request.fail(error):
                logger.exception("service '%s' failed on a notice", name)

    def _begun(self, name: str) -> _Service | None:
        """The service of that name, if it is of a family that begins now."""
        family = name.partition(".")[0]
        begin = self._unbegun.get(family)
        if begin is not None:
            begin()
            self._unbegun.pop(family, None)
        return self._services.get(name)

    def _served(self) -> list[str]:
        """The services there are, and `family.*` for those that begin when one of them is asked for."""
        return sorted([*self._services, *(f"{family}.*" for family in self._unbegun)])


def _abandon_all() -> None:
    for messenger in list(_live):
        run_guarded(messenger.abandon)
    _live.clear()
