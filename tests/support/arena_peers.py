"""What the other processes of the tests of shared memory do, and how they are looked at from outside."""

import collections
import concurrent.futures
import contextlib
import errno
import gc
import heapq
import logging
import multiprocessing
import os
import queue
import random
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlinf_scheduler.comm import DirectoryClient, Endpoint, Messenger
from rlinf_scheduler.comm.shm import kernel
from rlinf_scheduler.comm.shm.arena import Arena
from rlinf_scheduler.comm.shm.foreign import claim_slot
from rlinf_scheduler.comm.shm.holders import HolderTable, table_bytes
from rlinf_scheduler.comm.shm.io_thread import run_at
from rlinf_scheduler.comm.shm.kernel import map_array
from rlinf_scheduler.comm.shm.layout import WANTED_AT, read_header
from rlinf_scheduler.comm.shm.readers import OpenArenas
from rlinf_scheduler.mailbox import Mailbox

DEADLINE_S = 60.0
MIB = 1 << 20
ARENA = "memfd:rlinf-arena"
OWNER = Endpoint("f" * 32, "here", "/nowhere", "")


def num_maps(pid):
    """How many arenas a process has mapped."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return len({line.split()[4] for line in lines if ARENA in line})


def inode_of(arena):
    """What tells an arena from those that other threads of this process map and forget meanwhile."""
    return str(os.fstat(arena.fd).st_ino)


def num_areas(inode):
    """How many parts of an arena this process has mapped."""
    areas = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if ARENA in line]
    return sum(area[4] == inode for area in areas)


def num_open(pid):
    """How many descriptors of arenas a process has open."""
    count = 0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                count += ARENA in os.readlink(f"/proc/{pid}/fd/{name}")
    return count


def inodes_of(pid):
    """Which arenas a process has mapped or open, by the numbers of their inodes."""
    inodes = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if ARENA in line:
                inodes.add(int(line.split()[4]))
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if ARENA in os.readlink(f"/proc/{pid}/fd/{name}"):
                    inodes.add(os.stat(f"/proc/{pid}/fd/{name}").st_ino)
    return inodes


def wants_room(pid):
    """Whether a process waits for room in its arena."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        fd = kernel.open_of(pid, int(name)) if ARENA in os.readlink(f"/proc/{pid}/fd/{name}") else -1
        if fd < 0:
            continue
        try:
            if read_header(fd).pid == pid:
                return os.pread(fd, 1, WANTED_AT) == b"\1"
        finally:
            os.close(fd)
    return False


def is_alive(pid):
    """Whether a process runs."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


# -- one process that writes, and readers --------------------------------------------------------


class Inline:
    """An I/O thread that is whoever calls; what is submitted meanwhile comes next."""

    def __init__(self):
        self.now = time.monotonic
        self._ready = collections.deque()
        self._running = False
        self.later = []

    def submit(self, callback):
        self._ready.append(callback)
        if not self._running:
            self._running = True
            try:
                while self._ready:
                    self._ready.popleft()()
            finally:
                self._running = False

    def call_later(self, delay_s, callback):
        self.later.append(callback)

    def on_io_thread(self):
        return True


class Threaded:
    """A real I/O thread, of which every part is one step."""

    def __init__(self):
        self.now = time.monotonic
        self._ready = queue.SimpleQueue()
        self.submit = self._ready.put
        self._timers = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while True:
            with contextlib.suppress(queue.Empty):
                now = time.monotonic()
                callback = self._ready.get(timeout=max(0, self._timers[0][0] - now) if self._timers else None)
                if callback is None:
                    return
                callback()
            while self._timers and self._timers[0][0] <= time.monotonic():
                heapq.heappop(self._timers)[2]()

    def call_later(self, delay_s, callback):
        entry = (time.monotonic() + delay_s, id(callback), callback)
        self.submit(lambda: heapq.heappush(self._timers, entry))

    def on_io_thread(self):
        return threading.current_thread() is self._thread

    def run(self, function):
        """What a function gives that runs on the thread."""
        done = concurrent.futures.Future()
        self.submit(lambda: done.set_result(function()))
        return done.result(DEADLINE_S)

    def close(self):
        self.submit(None)
        self._thread.join(DEADLINE_S)


def readers(home=None, tell_owner=lambda owner: None):
    """What a process has open of the arenas of others; what it drops it releases at once."""
    home = home or Inline()
    opened = OpenArenas(home.submit, lambda arena: None, tell_owner)
    opened.release_soon = lambda arena: opened.wake()
    return opened


def lease(opened, arena, block, *, size_bytes=None, shared=False):
    """Hold a block that this process, or the one that has `arena` open, wrote."""
    owner_id, pid, fd = (OWNER.process_id, os.getpid(), arena.fd) if isinstance(arena, Arena) else arena
    size = block.room_bytes if size_bytes is None else size_bytes
    return opened.lease(opened.get(owner_id, pid, fd), block.index, block.generation, size, shared=shared)


class _Readers:
    """What a reader's process does; its children do the same, one line an order."""

    def __init__(self, place):
        self._opened = readers()
        self._place = place
        self._leases, self._arrays = {}, {}
        self._children = []

    def hold(self, block):
        self._leases[block.index] = lease(self._opened, self._place, block)
        self._arrays[block.index] = self._leases[block.index].array()

    def contents(self, index):
        return contents(self._arrays[int(index)])

    def drop(self, index):
        del self._leases[int(index)], self._arrays[int(index)]

    def fork(self, report):
        orders, ours = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ours)
            self._obey(orders, os.open(report, os.O_WRONLY))
        os.close(orders)
        self._children.append(ours)
        return child

    def tell_child(self, number, order):
        os.write(self._children[number], (order + "\n").encode())

    def _obey(self, orders, report):
        for line in os.fdopen(orders, closefd=False):
            name, *args = line.split()
            os.write(report, f"{outcome(getattr(self, name), *args)[0]}\n".encode())
        os._exit(0)


def outcome(function, *args):
    """What a function gives, and what it raises."""
    try:
        return function(*args), None
    except Exception as error:  # noqa: BLE001 - the test raises it
        return repr(error), error


def _read(pipe, place):
    here = _Readers(place)
    with contextlib.suppress(EOFError):
        while True:
            name, *args = pipe.recv()
            pipe.send(outcome(getattr(here, name), *args))
    os._exit(0)


SURE_AT = 999  # the cell of a block that nobody uses


def consumed_byte_of(generation):
    """A byte that stands for a generation, and is not 0."""
    return generation % 255 + 1


def hold_again_and_again(pipe, pid, fd, num_blocks):
    """Hold block 0 and release it, for a while, saying in a cell of its own row when it is sure of which generation."""
    own = kernel.open_of(pid, fd)
    table = HolderTable(map_array(own, 4096 + table_bytes(num_blocks))[4096:], num_blocks)
    slot = claim_slot(own, table)
    sure = slot * table.row_bytes + SURE_AT
    pipe.send(slot)
    num_held = 0
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline or not num_held:
        for _ in range(100):
            generation = table._generations[0]
            if table.hold(slot, 0, generation):
                table._cells[sure] = consumed_byte_of(generation)
                num_held += 1
                table._cells[sure] = 0
                table.release(slot, 0)
    pipe.send(num_held)


class Told(NamedTuple):
    """A block as another process is told of it."""

    index: int
    generation: int
    room_bytes: int

    @classmethod
    def of(cls, block):
        return cls(block.index, block.generation, block.room_bytes)


class Reader:
    """A process that holds blocks of an arena of this one."""

    def __init__(self, arena):
        context = multiprocessing.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        place = (OWNER.process_id, os.getpid(), arena.fd)
        self.process = context.Process(target=_read, args=(theirs, place), daemon=True)
        self.process.start()
        theirs.close()
        self.pid = self.process.pid

    def call(self, *order):
        self._pipe.send(order)
        assert self._pipe.poll(DEADLINE_S), f"{order} is not answered"
        value, error = self._pipe.recv()
        if error is not None:
            raise error
        return value

    def hold(self, *blocks):
        for block in blocks:
            self.call("hold", Told.of(block))

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        self.process.join(DEADLINE_S)

    def close(self):
        self._pipe.close()
        self.process.kill()
        self.process.join(DEADLINE_S)


def change_again_and_again(pipe, pid, fd):
    """Change every byte of somebody's memory for as long as the pipe is open."""
    own = kernel.open_of(pid, fd)
    memory = map_array(own, os.fstat(own).st_size)
    pipe.send("begun")
    while not pipe.poll(0):
        for value in (1, 0) * 100:
            memory[:] = value


@contextlib.contextmanager
def changing(size_bytes):
    """Memory that another process changes all the time."""
    fd = kernel.create(size_bytes)
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=change_again_and_again, args=(theirs, os.getpid(), fd), daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(DEADLINE_S)
    ours.recv()
    try:
        yield map_array(fd, size_bytes)
    finally:
        ours.close()
        process.join(DEADLINE_S)
        os.close(fd)


# -- processes that send to each other -----------------------------------------------------------


class Here:
    """What a peer's process has."""

    def __init__(self, secret, directory, name, options):
        self.messenger = Messenger(secret, name=name, **options)
        self.names = DirectoryClient(self.messenger, directory)
        self.names.register(name, self.messenger.endpoint)
        self.mailbox = Mailbox(self.messenger, self.names, name)
        self.held = []
        self.logged = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.logged.append(record.getMessage())
        logging.getLogger("rlinf_scheduler").addHandler(handler)


def _serve(pipe, prepare, secret, directory, name, options):
    logged = logging.getLogger("rlinf_scheduler")
    early = logging.Handler(logging.WARNING)
    early_messages = []
    early.emit = lambda record: early_messages.append(record.getMessage())
    logged.addHandler(early)
    if prepare is not None:
        prepare()
    here = Here(secret, directory, name, options)
    logged.removeHandler(early)
    here.logged[:0] = early_messages
    pipe.send(here.messenger.endpoint)
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            outcome = (function(here, *args), None)
        except Exception as error:  # noqa: BLE001 - the test raises it
            outcome = (None, error)
        pipe.send(outcome)


class Peer:
    """A process that runs functions of this module, one after the other, with a `Here`."""

    def __init__(self, prepare, secret, directory, name, options):
        context = multiprocessing.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        args = (theirs, prepare, secret, directory, name, options)
        self.process = context.Process(target=_serve, args=args, daemon=True)
        self.process.start()
        theirs.close()
        self.name = name
        self.pid = self.process.pid
        self.endpoint = self._receive()

    def _receive(self):
        assert self._pipe.poll(DEADLINE_S), f"'{self.name}' does not answer"
        return self._pipe.recv()

    def begin(self, function, *args):
        """Let it run a function, without waiting for the end."""
        self._pipe.send((function, args))

    def finish(self):
        """The result of what was begun."""
        value, error = self._receive()
        if error is not None:
            raise error
        return value

    def call(self, function, *args):
        self.begin(function, *args)
        return self.finish()

    def leave(self):
        """Let it end by itself."""
        self._pipe.close()
        self.process.join(DEADLINE_S)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        self.process.join(DEADLINE_S)

    def stop(self):
        """Return when it does not run any more, but is still there."""
        os.kill(self.pid, signal.SIGSTOP)
        eventually(lambda: all(_is_stopped(task) for task in Path(f"/proc/{self.pid}/task").iterdir()))

    def go_on(self):
        os.kill(self.pid, signal.SIGCONT)

    def close(self):
        self._pipe.close()
        self.process.kill()
        self.process.join(DEADLINE_S)
        self.process.close()


def _is_stopped(task):
    return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"


def eventually(condition):
    """Return when a condition holds that only the kernel or another process brings about."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


# -- what they do --------------------------------------------------------------------------------


def send(here, peer, value, num_items=1, size_bytes=MIB):
    """Send arrays full of `value`, `value` + 1, ..."""
    for number in range(num_items):
        item = np.full(size_bytes, value + number, np.uint8)
        here.mailbox.send(item, peer, timeout_s=DEADLINE_S).wait()


def receive(here, peer, num_items=1):
    """Receive arrays and keep them; what each is full of."""
    got = [here.mailbox.recv(peer, timeout_s=DEADLINE_S).wait() for _ in range(num_items)]
    here.held += got
    return [contents(item) for item in got]


def contents(item):
    """What an array is full of; None if it is not the same everywhere."""
    low, high = int(item.min()), int(item.max())
    return low if low == high else None


def held_contents(here):
    return [contents(item) for item in here.held]


def overwrite(here, value):
    for item in here.held:
        item[:] = value


def drop(here, num_items=None):
    del here.held[:num_items]
    gc.collect()


def num_in_shared_memory(here):
    """How many of the arrays held here lie in somebody's arena."""
    spans = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if ARENA in line:
            spans.append([int(edge, 16) for edge in line.split()[0].split("-")])
    addresses = [item.ctypes.data for item in here.held]
    return sum(any(begin <= address < end for begin, end in spans) for address in addresses)


def logged(here):
    return here.logged


def touched_bytes(here):
    return here.messenger.payloads.arena.touched_bytes


def allocated_bytes(here):
    """How much memory its arena has from the system."""
    return os.fstat(here.messenger.payloads.arena.fd).st_blocks * 512


def all_free(here):
    return here.messenger.payloads.arena.unused()


def make_ready(here, endpoint):
    """Return when it is known whether a peer reads what this process writes."""
    known = threading.Event()
    here.messenger.payloads.when_ready(endpoint, known.set)
    assert known.wait(DEADLINE_S)
    return here.messenger.payloads.reads_ours(endpoint.process_id)


def send_when_there_is_room(here, peer, value):
    """Send an array, for which there may be no room yet."""
    here.mailbox.send(np.full(MIB, value, np.uint8), peer, wait_s=DEADLINE_S, timeout_s=DEADLINE_S).wait()


def send_from_threads(here, peer, num_threads, num_items):
    """Send arrays that say from their first byte to their last which one they are."""

    def run(thread):
        sizes = random.Random(thread)
        for number in range(num_items):
            item = np.full(sizes.randint(4, 128) * 2048, thread * 1000 + number, np.uint32)
            here.mailbox.send(item, peer, timeout_s=DEADLINE_S, wait_s=DEADLINE_S).wait()

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def receive_stamped(here, peer, num_items):
    """Receive what `send_from_threads` sends, holding some of it for a while: (thread, number) of each."""
    stamps, held = [], []
    order = random.Random(7)
    for _ in range(num_items):
        held.append(here.mailbox.recv(peer, timeout_s=DEADLINE_S).wait())
        if len(held) > 8:
            stamps.append(_stamp(held.pop(order.randrange(len(held)))))
    return sorted(stamps + [_stamp(item) for item in held])


def _stamp(item):
    assert contents(item) is not None, "torn"
    return divmod(int(item[0]), 1000)


def close(here):
    here.messenger.close()


# -- what is missing in some processes -----------------------------------------------------------


def without_memfd():
    def refuse(*_args):
        raise OSError(errno.ENOSYS, "no memfd here")

    os.memfd_create = refuse


def with_temporary_files_in(folder):
    tempfile.tempdir = str(folder)


def without_proc():
    def refuse(pid, fd):
        raise PermissionError(errno.EACCES, "may not look into /proc")

    kernel.open_of = refuse


def without_proc_of_others():
    open_of = kernel.open_of

    def refuse(pid, fd):
        if pid != os.getpid():
            raise PermissionError(errno.EACCES, "may not look into /proc")
        return open_of(pid, fd)

    kernel.open_of = refuse


def run_out_of_descriptors(here):
    """From now on nothing can be opened, until `get_descriptors`."""

    def refuse(pid, fd):
        raise OSError(errno.EMFILE, "too many open files")

    run_at(here.messenger, here.messenger.payloads._open._recent.clear)
    here.open_of, kernel.open_of = kernel.open_of, refuse


def get_descriptors(here):
    """There are descriptors again."""
    kernel.open_of = here.open_of


def reads(here, process_id):
    """Whether a process reads what this one writes."""
    return here.messenger.payloads.reads_ours(process_id)
