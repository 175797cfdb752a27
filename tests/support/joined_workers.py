"""Ranks that start processes which join the job below them; each does what its parent sends it."""

import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading

import numpy as np

from rlinf.scheduler import Channel, Worker
from rlinf_scheduler.errors import SchedulerError

WAYS = ("spawn", "fork", "forkserver", "subprocess")
DEADLINE_S = 60.0
_PROGRAM = (
    "import sys; import joined_workers; joined_workers.child(int(sys.argv[1]) if sys.argv[1] else None)"
)


def child(rank=None):
    """What such a process runs: it says who it is, then obeys."""
    Worker.join_parent(rank, timeout_s=DEADLINE_S)
    serve(Worker())


def rlinf_child(parent_address, world_size, rank):
    """The same by the arguments of RLinf's programs."""
    serve(Worker(parent_address=parent_address, world_size=world_size, rank=rank))


def serve(worker):
    parent = worker.address.parent
    worker.send((str(worker.address), os.getpid()), parent.group, parent.path)
    while True:
        name, args = worker.recv(parent.group, parent.path, timeout_s=None)
        if name == "end":
            return
        try:
            answer = globals()[name](worker, *args)
        except SchedulerError as error:
            answer = error
        worker.send(answer, parent.group, parent.path)


class Starting:
    """What a worker needs in order to have others below it; of a rank, and of a child."""

    def __init__(self, worker):
        self.worker = worker
        self.processes = {}

    def start(self, way, rank=None, target=child, args=None):
        """Start a process below; its address and its pid."""
        if way in ("subprocess", "scrubbed"):
            path = os.pathsep.join(filter(None, sys.path))
            command = [sys.executable, "-c", _PROGRAM, "" if rank is None else str(rank)]
            kept = os.environ if way == "subprocess" else {}
            process = subprocess.Popen(command, env={**kept, "PYTHONPATH": path})
        else:
            process = multiprocessing.get_context(way).Process(
                target=target, args=args or (rank,), daemon=False
            )
            process.start()
        return process

    def met(self, process, number):
        """The address and the pid that the child of that number says."""
        # Also where one that was killed had the number before.
        options = {"timeout_s": DEADLINE_S, "wait_for_return": True}
        address, pid = self.worker.recv(self.group, self.below(number), **options)
        self.processes[number] = process
        return address, pid

    @property
    def group(self):
        return self.worker.address.group

    def below(self, number):
        return (*self.worker.address.path, number)

    def ask(self, number, name, *args):
        self.worker.send((name, args), self.group, self.below(number))
        return self.worker.recv(self.group, self.below(number), timeout_s=DEADLINE_S)

    def kill(self, number):
        """Kill a child, and wait until the kernel has ended it."""
        process = self.processes.pop(number)
        os.kill(process.pid, signal.SIGKILL)
        process.wait() if isinstance(process, subprocess.Popen) else process.join()


class Nest(Worker):
    def __init__(self):
        self.children = Starting(self)
        self.lost = queue.SimpleQueue()
        self.on_child_lost(self.lost.put)

    def next_lost(self):
        """What the rank hears next of one that has died."""
        return self.lost.get(timeout=DEADLINE_S)

    def open(self, way, number=None, rank=None):
        return self.children.met(self.children.start(way, rank), number if number is not None else rank or 0)

    def open_rlinf(self, way, rank, world_size):
        process = self.children.start(way, target=rlinf_child, args=(self.address, world_size, rank))
        return self.children.met(process, rank)

    def ask(self, number, name, *args):
        return self.children.ask(number, name, *args)

    def end(self, number):
        self.send(("end", ()), self.group_name, [self.rank, number])
        process = self.children.processes.pop(number)
        return (
            process.wait() if isinstance(process, subprocess.Popen) else (process.join(), process.exitcode)[1]
        )

    def kill(self, number):
        self.children.kill(number)

    def kill_and_open(self, way, number):
        """Another process at once in the place of one that was killed."""
        self.children.kill(number)
        return self.children.met(self.children.start(way, number), number)

    def error_of(self, way, function, *args):
        """What a process raises that does something else than to join."""
        here, there = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context(way).Process(target=tell_error, args=(there, function, args))
        process.start()
        there.close()
        told = here.recv()
        process.join()
        return told

    def own_error(self, *args, **options):
        try:
            Worker.join_parent(*args, **options)
        except SchedulerError as error:
            return str(error)

    def send_to(self, obj, group, rank):
        self.send(obj, group, rank)

    def recv_from(self, group, rank, **options):
        return self.recv(group, rank, **options)

    def take_part(self, groups, src):
        return self.broadcast(None, groups, src)

    def threads_open(self, way, count):
        """Start several side by side, each of which takes the number that it finds."""
        processes = [self.children.start(way) for _ in range(count)]
        met = [self.children.met(process, number) for number, process in enumerate(processes)]
        self.children.processes = {number: by_pid(processes, pid) for number, (_, pid) in enumerate(met)}
        return met

    def stop_without_order(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def pid(self):
        return os.getpid()


def by_pid(processes, pid):
    return next(process for process in processes if process.pid == pid)


def tell_error(pipe, function, args):
    try:
        function(*args)
    except SchedulerError as error:
        pipe.send(f"{type(error).__name__}: {error}")
    else:
        pipe.send("no error")


# -- what children do --------------------------------------------------------------------------------


def who(worker):
    return {
        "address": str(worker.address),
        "rank": worker.rank,
        "world_size": worker.world_size,
        "group": worker.group_name,
        "placement": worker.placement,
        "seed": worker.seed,
        "has_ray": "ray" in sys.modules,
        "is_in_ray": "ray" in sys.modules and sys.modules["ray"].is_initialized(),
        "again": str(Worker.join_parent()),
    }


def send(worker, obj, group, rank):
    worker.send(obj, group, rank)


def recv(worker, group, rank):
    return worker.recv(group, rank, timeout_s=DEADLINE_S)


def broadcast(worker, obj, groups, src):
    return worker.broadcast(obj, groups, src, timeout_s=DEADLINE_S)


def put(worker, channel, items, **options):
    connected = worker.connect_channel(channel)
    for item in items:
        connected.put(item, **options)


def create(worker, channel):
    Channel.create(channel)


def get(worker, channel):
    return worker.connect_channel(channel).get(timeout_s=DEADLINE_S)


LEASES = []


def lease(worker, channel):
    held = worker.connect_channel(channel).lease(timeout_s=DEADLINE_S)
    LEASES.append(held)
    return held.__enter__().item


def publish(worker, name, value):
    worker.publish_weights(name, {"w": np.full(1 << 16, value)}, version=1)


def fetch(worker, name):
    into = {"w": np.zeros(1 << 16)}
    version = worker.fetch_weights(name, into=into, timeout_s=DEADLINE_S)
    return version, float(into["w"].sum())


def log(worker, text):
    worker.log_info(text)
    with worker.timer("part"), worker.device_lock():
        pass


def open_below(worker, way):
    started = Starting(worker)
    CHILDREN.append(started)
    return started.met(started.start(way), 0)


def ask_below(worker, name, *args):
    return CHILDREN[-1].ask(0, name, *args)


def wait_in_thread(worker, group, rank):
    threading.Thread(target=worker.recv, args=(group, rank), kwargs={"timeout_s": None}, daemon=True).start()


def launch_a_group(worker):
    from rlinf.scheduler import Cluster  # which loads Ray; children need none

    del worker
    Nest.create_group().launch(Cluster())


def pid(worker):
    return os.getpid()


def title(worker):
    with open("/proc/self/cmdline", "rb") as file:
        return file.read().rstrip(b"\0").decode()


CHILDREN = []
