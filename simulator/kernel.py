"""A simulated kernel: sockets between processes, readiness, and a process's I/O thread as events of the world.

What stands above it is the product's own: `IoLoop`, `Sockets`, `Messenger`. Between processes of one machine lies a
Unix socket, which nothing cuts; between others TCP, over the network of the world.
"""

from __future__ import annotations

import errno
import heapq
import math
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, NoReturn, cast

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rlinf_scheduler.channel.remote_items import RemoteItems
from rlinf_scheduler.checks import FOREVER_S
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.loop import READABLE, WRITABLE, IoLoop, Timer
from rlinf_scheduler.comm.messenger import Messenger, Platform
from rlinf_scheduler.comm.operation import SWEEP_S, Deliveries
from rlinf_scheduler.comm.secret import ClusterSecret
from rlinf_scheduler.comm.shm.payloads import Payloads
from rlinf_scheduler.comm.transport.identity import Identity, process_id_of
from rlinf_scheduler.comm.transport.peer_session import PeerSession
from rlinf_scheduler.comm.transport.sockets import Sockets, Watched
from rlinf_scheduler.mailbox.inbox import Inbox
from simulator.disk import Files, SimulatedDisk
from simulator.memory import Memory, SimulatedPayloads
from simulator.network import SILENT_US, Network, delays
from simulator.threads import SLOW_SHARE, SLOW_US, UserThread, hands_over, running
from simulator.world import Process, World

SECRET = ClusterSecret(bytes(range(32)))
# So much may lie between two ends of a connection.
CAPACITIES = (64 << 10, 1 << 20)
# While the other machine says nothing, the kernel is asked so often.
LOOK_US = 5_000_000
# What runs beside an I/O thread takes so long.
BESIDE_US = 50_000
_BROKEN = select.EPOLLERR | select.EPOLLHUP
_END = object()
_RESET = object()
_TCP_INFO = struct.Struct("8x13I")
_UCRED = struct.Struct("iII")


class Wire:
    """A connection between two sockets: what is sent arrives late and in order, or, once it is broken, not at all."""

    def __init__(self, kernel: Kernel, dialler: SimulatedSocket, acceptor: SimulatedSocket) -> None:
        self.ends = (dialler, acceptor)
        self.pair = frozenset((dialler.process.name, acceptor.process.name))
        self.is_local = dialler.family == socket.AF_UNIX
        self.broken = False
        self.capacity = kernel.draw.choice(CAPACITIES)
        self.held: list[tuple[SimulatedSocket, Any]] = []  # what has arrived at a stall
        self._free_at = {dialler: 0, acceptor: 0}
        self._kernel = kernel

    def other(self, end: SimulatedSocket) -> SimulatedSocket:
        """Return the other end."""
        return self.ends[end is self.ends[0]]

    def send(self, sender: SimulatedSocket, what: Any) -> None:
        """Send bytes, the end, or a reset."""
        kernel, receiver = self._kernel, self.other(sender)
        now_us = kernel.world.now_us
        at_us = max(self._free_at[receiver], now_us + kernel.delay_us(sender.process, receiver.process))
        self._free_at[receiver] = at_us
        kernel.world.schedule(at_us, None, self.arrive, (receiver, what))

    def arrive(self, receiver: SimulatedSocket, what: Any) -> None:
        """Something has come to the machine of one end."""
        if self.broken:
            return
        if not self.is_local and self._kernel.is_obstructed(self.pair):
            self.held.append((receiver, what))
        else:
            receiver.receive(what)

    def clear(self) -> None:
        """Nothing stands between any more."""
        held, self.held = self.held, []
        for receiver, what in held:
            receiver.receive(what)

    def cut(self) -> None:
        """Break it; both ends find that a little later."""
        self.broken = True
        for end in self.ends:
            kernel, delay_us = self._kernel, self._kernel.delay_us(end.process, end.process)
            kernel.world.schedule(kernel.world.now_us + delay_us, None, end.receive, (_RESET,))


class SimulatedSocket:
    """What the product asks of a `socket.socket` that never blocks."""

    def __init__(self, kernel: Kernel, process: Process, loop: SimulatedLoop, family: int) -> None:
        self.family = family
        self.process = process
        self.wire: Wire | None = None
        self.address: Any = None
        self.backlog: deque[SimulatedSocket] | None = None  # of a listener
        self.unread_bytes = 0
        self._kernel = kernel
        self._loop = loop
        self._fd = kernel.open(self)
        self._unread: deque[memoryview] = deque()
        self._under_way = 0  # sent, and not read by the other end
        self._error = 0
        self._ended = False  # the other end says nothing any more

    # -- what the product calls --------------------------------------------------------------------

    def fileno(self) -> int:
        return self._fd

    def setsockopt(self, *_option: int) -> None:
        """Whatever it is."""

    def setblocking(self, _blocks: bool) -> None:
        """It never does."""

    def getsockopt(self, level: int, option: int, _size: int = 0) -> Any:
        if level == socket.IPPROTO_TCP and option == socket.TCP_INFO:
            silent_ms = self._kernel.silent_us(self) // 1000
            return _TCP_INFO.pack(*([0] * 11), silent_ms, silent_ms)
        if option == socket.SO_PEERCRED:
            return _UCRED.pack(1, os.getuid(), 0)
        error, self._error = self._error, 0
        return error

    def bind(self, address: Any) -> None:
        port = 1024 + self._fd
        self.address = (address[0], port) if isinstance(address, tuple) else address
        self._kernel.listeners[self.address] = self
        self._kernel.owners[self.address] = self.process.name

    def getsockname(self) -> Any:
        return self.address

    def listen(self, _backlog: int) -> None:
        self.backlog = deque()

    def accept(self) -> tuple[SimulatedSocket, Any]:
        if not self.backlog:
            raise BlockingIOError(errno.EAGAIN, "nobody")
        connection = self.backlog.popleft()
        return connection, connection.address

    def connect(self, address: Any) -> None:
        if self.family == socket.AF_UNIX:
            self._kernel.connect(self, address)
            if self._error:
                self._fail()
            return
        self._kernel.dial(self, address)
        raise BlockingIOError(errno.EINPROGRESS, "under way")

    def send(self, data: Any) -> int:
        return self.sendmsg((data,))

    def sendmsg(self, pieces: Sequence[Any]) -> int:
        wire = self._writable()
        room = wire.capacity - self._under_way
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, "full")
        data = bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
        sent = data if len(data) <= room else data[:room]
        self._under_way += len(sent)
        wire.send(self, sent)
        return len(sent)

    def recv(self, size: int) -> bytes:
        memory = bytearray(size)
        return bytes(memory[: self.recv_into(memory)])

    def recv_into(self, memory: Any) -> int:
        if not self._unread:
            if self._ended:
                return 0
            if self._error:
                self._fail()
            raise BlockingIOError(errno.EAGAIN, "nothing")
        target = memoryview(memory)
        count = 0
        while self._unread and count < len(target):
            first = self._unread[0]
            size = len(target) - count
            if len(first) <= size:
                size = len(first)
                self._unread.popleft()
            else:
                first, self._unread[0] = first[:size], first[size:]
            target[count : count + size] = first
            count += size
        self.unread_bytes -= count
        if self.wire is not None:
            self.wire.other(self).is_read(count)
        return count

    def close(self) -> None:
        if self._fd < 0:
            return
        self._kernel.close(self._fd)
        self._fd = -1
        if self.backlog is not None:
            self._kernel.listeners.pop(self.address, None)
            for connection in self.backlog:
                connection.close()
        elif self.wire is not None and not self.wire.broken:
            # As the kernel does: whoever leaves something unread resets the connection.
            self.wire.send(self, _RESET if self._unread else _END)

    # -- what the kernel does ----------------------------------------------------------------------

    def events(self) -> int:
        """Return what it is ready for."""
        if self.backlog is not None:
            return READABLE if self.backlog else 0
        mask = 0
        if self._unread or self._ended or self._error:
            mask |= READABLE
        if self._error:
            mask |= WRITABLE | _BROKEN
        elif self.wire is not None and self._under_way < self.wire.capacity:
            mask |= WRITABLE
        return mask

    def receive(self, what: Any) -> None:
        """Bytes, the end of the other side, or a reset, have come."""
        if self._fd < 0:
            if self.wire is not None and what is not _RESET and what is not _END:
                self.wire.send(self, _RESET)
            return
        if what is _END:
            self._ended = True
        elif what is _RESET:
            self._error = errno.ECONNRESET
        else:
            self._unread.append(memoryview(what))
            self.unread_bytes += len(what)
        self._loop.stir(self)

    def is_read(self, count: int) -> None:
        """The other end has read so much."""
        self._under_way -= count
        self._loop.stir(self)

    def connected(self, wire: Wire) -> None:
        """It leads to another socket now."""
        self.wire = wire
        self._loop.stir(self)

    def welcomes(self, acceptor: SimulatedSocket) -> None:
        """It has another connection to be accepted, as a listener."""
        if self.backlog is not None:
            self.backlog.append(acceptor)
            self._loop.stir(self)

    def refused(self, code: int) -> None:
        """It leads nowhere."""
        self._error = code
        self._loop.stir(self)

    @property
    def loop(self) -> SimulatedLoop:
        """Who watches it."""
        return self._loop

    def _writable(self) -> Wire:
        if self._error:
            self._fail()
        if self.wire is None:
            raise OSError(errno.ENOTCONN, "not connected")
        return self.wire

    def _fail(self) -> NoReturn:
        code, self._error = self._error, errno.EPIPE
        raise OSError(code, os.strerror(code))


class SimulatedDatagrams(SimulatedSocket):
    """A socket between two processes of one machine that keeps datagrams apart: what is sent is there at once.

    A user's thread may block in it.
    """

    def __init__(self, kernel: Kernel, process: Process, loop: SimulatedLoop) -> None:
        super().__init__(kernel, process, loop, socket.AF_UNIX)
        self._datagrams: deque[bytes] = deque()
        self._other: SimulatedDatagrams | None = None
        self._timeout_s: float | None = 0.0
        self._reader: UserThread | None = None

    def settimeout(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    def detach(self) -> int:
        return self._fd

    def connect(self, address: Any) -> None:
        listener: Any = self._kernel.listeners.get(address)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")
        acceptor = SimulatedDatagrams(self._kernel, listener.process, listener.loop)
        self._other, acceptor._other = acceptor, self
        listener.welcomes(acceptor)

    def send(self, data: Any) -> int:
        thread = running()
        if thread is not None:
            thread.sends()
        if self._error:
            self._fail()
        if self._other is None or self._other.fileno() < 0 or self._ended:
            raise BrokenPipeError(errno.EPIPE, "nobody is there")
        self._other._datagrams.append(bytes(data))
        self._other.arrived()
        hands_over()
        return len(data)

    def recv(self, size: int, flags: int = 0) -> bytes:
        memory = bytearray(size)
        if flags & socket.MSG_DONTWAIT:
            return bytes(memory[: self._read(memory)])
        return bytes(memory[: self.recv_into(memory)])

    def recv_into(self, memory: Any) -> int:
        thread = running()
        if thread is not None and self._timeout_s != 0:
            self._block(thread)
        return self._read(memory)

    def _block(self, thread: UserThread) -> None:
        """Let a thread wait until there is something to read."""
        thread.point()
        until_s = None if self._timeout_s is None else self.process.now() + self._timeout_s
        self._reader = thread
        try:
            while not self.events():
                left_s = None if until_s is None else until_s - self.process.now()
                if left_s is not None and left_s <= 0:
                    raise TimeoutError
                thread.block(left_s)
        finally:
            self._reader = None
        thread.find_end()

    def _read(self, memory: Any) -> int:
        if self._error:
            self._fail()
        if not self._datagrams:
            if self._ended:
                return 0
            raise BlockingIOError(errno.EAGAIN, "nothing")
        datagram = self._datagrams.popleft()
        memory[: len(datagram)] = datagram
        return len(datagram)

    def shutdown(self, _how: int) -> None:
        self._ended = True
        self.arrived()
        if self._other is not None:
            self._other._ended = True
            self._other.arrived()

    def close(self) -> None:
        if self._fd < 0:
            return
        super().close()
        if self._other is not None:
            self._other._ended = True
            if self._datagrams:  # as the kernel does
                self._other._error = errno.ECONNRESET
            self._other.arrived()

    def events(self) -> int:
        if self.backlog is not None:
            return READABLE if self.backlog else 0
        return READABLE if self._datagrams or self._ended or self._error else 0

    def arrived(self) -> None:
        """There is something to be read, or nothing more will come."""
        self._loop.stir(self)
        if self._reader is not None:
            self._reader.wake()


class OwnedDatagrams:
    """What a process has of such a socket, which is closed with the last reference.

    Args:
        fileno: of one that is there; None for a new one of the process whose I/O thread runs now.
    """

    def __init__(self, fileno: int | None = None) -> None:
        loop = SimulatedLoop.at_work
        if loop is None:
            raise RuntimeError("sockets are made by I/O threads")
        self._socket = loop.datagrams(fileno)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def __del__(self) -> None:
        self._socket.close()


class _Epoll:
    """The descriptors that one process watches.

    Attributes:
        stirred: those of which something has changed since they were found not to be ready.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._wanted: dict[int, int] = {}
        self.stirred: set[int] = set()

    def register(self, fd: int, events: int) -> None:
        self._wanted[fd] = events | _BROKEN
        self.stirred.add(fd)

    def modify(self, fd: int, events: int) -> None:
        if fd in self._wanted:
            self.register(fd, events)

    def unregister(self, fd: int) -> None:
        self._wanted.pop(fd, None)

    def poll(self, _timeout_s: float = 0.0, _limit: int = 0) -> list[tuple[int, int]]:
        stirred = self.stirred
        if not stirred:
            return []
        sockets = self._kernel.sockets
        ready = [
            (fd, mask)
            for fd, wanted in self._wanted.items()
            if fd in stirred and (mask := sockets[fd].events() & wanted)
        ]
        stirred.clear()
        stirred.update(fd for fd, _ in ready)
        if len(ready) > 1:  # what was ready before comes again behind, or before
            self._kernel.draw.shuffle(ready)
        return ready

    def close(self) -> None:
        self._wanted.clear()


class SimulatedLoop(IoLoop):
    """The I/O thread of a simulated process: a round is an event of the world, and so is what would wake it."""

    at_work: ClassVar[SimulatedLoop | None] = None
    _epoll: Any

    def __init__(self, kernel: Kernel, process: Process, name: str, on_failed: Any = None) -> None:
        self._kernel = kernel
        self._process = process
        self._due_us: int | None = None
        self._look = 0  # the event in which it only looks again
        super().__init__(name, on_failed)
        self.now = process.now

    def _open(self, _name: str) -> None:
        self._epoll = _Epoll(self._kernel)
        self._wake_fd = -1
        self._sleeping = True

    def start(self) -> None:
        """Start the thread."""
        self.poke()

    def join(self, timeout_s: float) -> None:
        """It goes on as the world does."""

    def dispose(self) -> None:
        """Give the descriptors back: the thread's last act, or its maker's if it was never started."""
        self._epoll.close()

    def ready_now(self, descriptors: Iterable[int], events: int) -> set[int]:
        """Return those of some descriptors that are ready, or broken, by one question to the kernel."""
        sockets = self._kernel.sockets
        return {fd for fd in descriptors if sockets[fd].events() & (events | _BROKEN)}

    def stir(self, each: SimulatedSocket) -> None:
        """Something about one of its sockets has changed."""
        self._epoll.stirred.add(each._fd)
        self.poke()

    def poke(self) -> None:
        """Something is there to be done, and the thread gets its turn soon; now and then it is late."""
        draw = self._kernel.draw
        self._plan(draw.randrange(SLOW_US if draw.random() < SLOW_SHARE else 40))

    def datagrams(self, fileno: int | None) -> SimulatedDatagrams:
        """Return a socket of this process for datagrams: a new one, or the one that has this descriptor."""
        if fileno is None:
            return SimulatedDatagrams(self._kernel, self._process, self)
        return cast(SimulatedDatagrams, self._kernel.sockets[fileno])

    def submit_once(self, callback: Callable[[], None]) -> None:
        """As the product's; a thread may be interrupted before it and behind."""
        hands_over()
        super().submit_once(callback)
        hands_over()

    def _wake(self) -> None:
        self.poke()

    def _until_next_timer(self) -> float:
        return 0.0  # it is looked for when there is nothing else to do

    def _add_timer(self, when: float, timer: Timer) -> None:
        # Time stands still within an event: what is to happen later happens in another one.
        super()._add_timer(max(when, self.now() + 1e-6), timer)

    def _plan(self, delay_us: int, *, looks: bool = False) -> None:
        process = self._process
        world = process.world
        at_us = world.now_us + delay_us
        if self._due_us is None or at_us < self._due_us:
            self._due_us, self._look = at_us, 0
            if looks:
                self._look = world.schedule_look(at_us, process, self._turn, at_us)
            else:
                world.schedule(at_us, process, self._turn, (at_us,))
        elif not looks:
            world.is_no_look(self._look)

    def _turn(self, at_us: int) -> None:
        if at_us != self._due_us:  # it had its turn before
            return
        self._due_us = None
        self._ident = threading.get_ident()
        SimulatedLoop.at_work = self
        try:
            self._run_once()
        finally:
            SimulatedLoop.at_work = None
            self._ident = 0
            self._sleeping = True
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
        if self._ready or self._epoll.poll():
            self._plan(self._kernel.draw.randrange(1, 10))
        elif timers and timers[0][0] < FOREVER_S:
            due_us = math.ceil(timers[0][0] * 1e6)
            looks = all(_looks_again(timer) for when, _, timer in timers if when < FOREVER_S)
            self._plan(max(1, due_us - self._process.world.now_us), looks=looks)


def _looks_again(timer: Timer) -> bool:
    """Whether a timer is of what a process looks at again and again, for ever if need be."""
    callback = timer.callback
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, Deliveries):
        if isinstance(owner._owner, Inbox):  # nothing else tells it what was taken
            return False
        return callback == owner._on_sweep or owner._look_s >= SWEEP_S
    if isinstance(owner, RemoteItems):
        return callback == owner._sweep
    return callback is None


class SimulatedSockets(Sockets):
    """The product's, over simulated ones; what falls silent is said when it does, and not asked about each second."""

    def __init__(self, kernel: Kernel, process: Process, *args: Any, **options: Any) -> None:
        self._kernel = kernel
        self._process = process
        loop = args[0]
        self.new_socket = lambda family, _type: kernel.socket(process, loop, family)
        super().__init__(*args, **options)
        kernel.looks[process.name] = self.look

    def new_session(self, process_id: str, grace_s: float) -> PeerSession[Any]:
        """Return our half of a session with a process, of a number that no other has."""
        number = self._kernel.draw.getrandbits(62) | 1
        return self._kernel.make_session(
            self.me.process_id, process_id, number, self._loop.now(), grace_s=grace_s
        )

    def watch(self, transport: Watched) -> None:
        """Look after connections: the kernel notices when the other machine falls silent, and says so if asked."""
        self._watched.add(transport)

    def look(self) -> None:
        """See what has fallen silent, or is heard again."""
        for transport in sorted(self._watched, key=_process_id):
            if not transport.look():
                self._watched.discard(transport)


def _process_id(transport: Any) -> str:
    name: str = transport.endpoint.process_id
    return name


class SimulatedKey:
    """Both halves of a process's key: nobody forges here, so what it signs is cheap to make and to check."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def sign(self, statement: bytes) -> bytes:
        return blake2b(statement, key=self._public).digest()

    def verify(self, signature: bytes, statement: bytes) -> None:
        if signature != self.sign(statement):
            raise InvalidSignature


class SimulatedIdentity(Identity):
    """With a key that a seed draws, so that process ids are the same in each telling."""

    __slots__ = ()

    def __init__(self, secret: ClusterSecret, name: str, seed: str) -> None:
        self.secret = secret
        self.name = name
        key = blake2b(seed.encode(), digest_size=32).digest()
        self._public = Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()
        self._key = SimulatedKey(self._public)  # type: ignore[assignment]
        self.process_id = process_id_of(self._public)
        self.endpoint = Endpoint(self.process_id, "", "", "")


class _Folder:
    """The run directory of a process."""

    def __init__(self, name: str) -> None:
        self.path = Path("/simulated", name)

    def close(self) -> None:
        """Nothing lies there."""

    def abandon(self) -> None:
        """Nothing lies there."""


class Kernel:
    """The kernels of all machines.

    Args:
        world: where they are.
        network: what lies between machines.
        make_session: makes half of a session.

    Attributes:
        draw: decides what is late.
        listeners: the sockets to which others connect, by address.
        owners: who listens, or has listened, at each.
        sockets: all that are open, by descriptor.
        disks: the disk as each process sees it, by its name; it is the same.
        looks: what each process does when the network falls silent, or speaks again.
    """

    def __init__(
        self, world: World, network: Network, make_session: Callable[..., PeerSession[Any]] = PeerSession
    ) -> None:
        self.world = world
        self.make_session = make_session
        self.draw = world.randomness("kernel")
        self.listeners: dict[Any, SimulatedSocket] = {}
        self.owners: dict[Any, str] = {}
        self.sockets: dict[int, SimulatedSocket] = {}
        self.looks: dict[str, Callable[[], None]] = {}
        self._network = network
        self._num_opened = 0
        self._wires: dict[frozenset[str], list[Wire]] = {}
        self._dialling: dict[frozenset[str], list[tuple[SimulatedSocket, Any]]] = {}
        self._machines: dict[str, str] = {}
        self._names: dict[str, str] = {}  # of processes, by their ids
        self._memory = Memory()
        self._delays: dict[tuple[str, str], Callable[[], int]] = {}
        self.disks: dict[str, SimulatedDisk] = {}
        self._files = Files(world)
        network.kernels.append(self)

    # -- processes -----------------------------------------------------------------------------------

    def start(self, process: Process, machine: str, *, has_memory: bool = False) -> Messenger:
        """Return the messenger of a new process; it may share memory with those of its machine."""
        self._machines[process.name] = machine
        seed = f"{self.world.seed}/{process.name}"

        def is_near(process_id: str) -> bool:
            return self._machines.get(self._names.get(process_id, "")) == machine

        messenger = Messenger(
            SECRET,
            name=process.name,
            host=f"10.0.0.{len(self._machines)}",
            tcp=True,
            encryption=False,
            machine_id=machine,
            arena_limit_bytes=0,
            platform=Platform(
                loop=lambda name, on_failed: SimulatedLoop(self, process, name, on_failed),
                run_directory=lambda: _Folder(process.name),  # type: ignore[arg-type, return-value]
                identity=lambda secret, name: SimulatedIdentity(secret, name, seed),
                sockets=lambda *args, **options: SimulatedSockets(self, process, *args, **options),
                payloads=partial(SimulatedPayloads, self._memory, process, is_near)
                if has_memory
                else Payloads,
                disk=self.disks.setdefault(process.name, SimulatedDisk(self._files, process)),
                run_beside=lambda _call_later, function, *args: process.later(
                    self.draw.randrange(BESIDE_US), function, *args
                ),
            ),
        )
        self._names[messenger.endpoint.process_id] = process.name
        return messenger

    def machine_of(self, name: str) -> str:
        """Return the machine on which a process runs."""
        return self._machines[name]

    def buried(self, name: str) -> None:
        """A process has died: the kernel closes what it had open."""
        for each in [each for each in self.sockets.values() if each.process.name == name]:
            each.close()
        if name in self.disks:
            self.disks[name].close_all()

    # -- sockets -------------------------------------------------------------------------------------

    def socket(self, process: Process, loop: SimulatedLoop, family: int) -> Any:
        """Return a new socket."""
        return SimulatedSocket(self, process, loop, family)

    def open(self, each: SimulatedSocket) -> int:
        """Return the descriptor of a socket; no two have the same."""
        self._num_opened += 1
        self.sockets[self._num_opened] = each
        return self._num_opened

    def close(self, fd: int) -> None:
        """Forget a descriptor."""
        del self.sockets[fd]

    def dial(self, dialler: SimulatedSocket, address: Any) -> None:
        """Connect to another machine, in a while."""
        delay_us = self._delay_us(dialler.process.name, self.owners[address])
        self.world.schedule(self.world.now_us + delay_us, None, self._knock, (dialler, address))

    def _knock(self, dialler: SimulatedSocket, address: Any) -> None:
        pair = frozenset((dialler.process.name, self.owners[address]))
        if dialler.fileno() < 0:
            return
        if self.is_obstructed(pair):
            self._dialling.setdefault(pair, []).append((dialler, address))
        else:
            self.connect(dialler, address)

    def connect(self, dialler: SimulatedSocket, address: Any) -> None:
        """Connect a socket to the listeners at an address."""
        listener = self.listeners.get(address)
        if listener is None or listener.backlog is None:
            dialler.refused(errno.ECONNREFUSED)
            return
        acceptor = SimulatedSocket(self, listener.process, listener.loop, dialler.family)
        wire = Wire(self, dialler, acceptor)
        self._wires.setdefault(wire.pair, []).append(wire)
        acceptor.address = ("10.0.0.99", 9) if dialler.family != socket.AF_UNIX else ""
        dialler.connected(wire)
        acceptor.wire = wire
        listener.welcomes(acceptor)

    # -- the network ---------------------------------------------------------------------------------

    def delay_us(self, sender: Process, receiver: Process) -> int:
        """Return how long something is on its way."""
        if self._machines[sender.name] == self._machines[receiver.name]:
            slow = self.draw.random() < SLOW_SHARE
            return self.draw.randrange(1, SLOW_US if slow else 30)
        return self._delay_us(sender.name, receiver.name)

    def _delay_us(self, sender: str, receiver: str) -> int:
        draw = self._delays.get((sender, receiver))
        if draw is None:
            draw = self._delays[sender, receiver] = delays(self.world.randomness("wires", sender, receiver))
        return draw()

    def is_obstructed(self, pair: frozenset[str]) -> bool:
        """Whether two processes cannot talk now."""
        machines = {self._machines.get(name) for name in pair}
        return len(machines) > 1 and self._network.is_obstructed(pair)

    def silent_us(self, each: SimulatedSocket) -> int:
        """Return for how long nothing has come from the other machine."""
        wire = each.wire
        if wire is None or not self.is_obstructed(wire.pair):
            return 0
        return self.world.now_us - self._network.obstructed_since_us(wire.pair)

    def cut(self, pair: frozenset[str]) -> None:
        """Break what lies between two processes."""
        for wire in self._wires.pop(pair, ()):
            if wire.is_local:
                self._wires.setdefault(pair, []).append(wire)
            else:
                wire.cut()

    def stalled(self, pair: frozenset[str], for_us: int) -> None:
        """Nothing passes between two processes for a while."""
        for after_us in range(SILENT_US + 1_000, for_us, LOOK_US):
            self._look(pair, after_us)

    def cleared(self, pair: frozenset[str]) -> None:
        """Nothing stands between two processes any more."""
        for wire in list(self._wires.get(pair, ())):
            wire.clear()
        for dialler, address in self._dialling.pop(pair, ()):
            self.dial(dialler, address)
        self._look(pair, 1_000)

    def _look(self, pair: frozenset[str], after_us: int) -> None:
        for name in sorted(pair):
            look = self.looks.get(name)
            if look is not None:
                self._network.end_of(name).process.later(after_us, look)
