"""Worker classes that the tests launch; in a module of their own, so that workers import them by name."""

import _thread
import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

import rlinf_scheduler
from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker


class RaisesInInit(Worker):
    """Raises what it is given, with a cause."""

    def __init__(self, error):
        super().__init__()
        try:
            raise LookupError("the cause")
        except LookupError as cause:
            raise error from cause


class Probe(Worker):
    """Says what it sees."""

    def __init__(self, offset=0):
        super().__init__()
        self.offset = offset
        self.gate = threading.Event()

    def add(self, a, b=0):
        return a + b + self.rank + self.offset

    def environment(self, *names):
        return {name: os.environ.get(name) for name in names}

    def class_facts(self):
        ours = rlinf_scheduler.Worker
        return ours.accelerator_type, ours.torch_device_type, ours.torch_platform.__name__

    def node_groups(self):
        """The nodes of each declared group, as a view without a config has them."""
        return {group.label: group.node_ranks for group in Cluster().topology.node_groups}

    def program_above(self):
        """What started this process."""
        return Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")[1].decode()

    def breakpoint_hook(self):
        return type(sys.breakpointhook).__name__

    def who(self):
        return {
            "rank": self.rank,
            "_rank": self._rank,
            "world_size": self.world_size,
            "local_rank": self.local_rank,
            "node_rank": self.node_rank,
            "address": str(self.address),
            "pid": self.info.pid,
            "real_pid": os.getpid(),
            "main_thread": threading.current_thread() is threading.main_thread(),
        }

    def threads(self):
        return [thread.name for thread in threading.enumerate() if thread.name.startswith(("rlinf", "comm"))]

    def start_a_child(self):
        """A process that does not end by itself."""
        return subprocess.Popen(["sleep", "600"]).pid

    def fork_in_a_thread(self):
        """How a child ends that leaves the thread in which it was forked; None: it does not."""
        ends = []

        def fork():
            child = os.fork()
            if child == 0:
                return
            descriptor = os.pidfd_open(child)
            has_ended = bool(select.select([descriptor], [], [], 60)[0])
            os.close(descriptor)
            if not has_ended:
                os.kill(child, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            ends.append(status if has_ended else None)

        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        return ends

    def fail_on(self, rank):
        if self.rank == rank:
            raise LookupError(f"no such thing on rank {rank}")
        return self.rank

    def fail_on_rank_zero_others_wait(self):
        if self.rank == 0:
            raise ValueError("rank 0 cannot")
        self.gate.wait(60)

    def die(self, rank):
        if self.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        self.gate.wait(60)

    def wait_for_gate(self):
        return self.gate.wait(60)

    def hold_the_process(self):
        self.holds = True
        self.gate.wait(60)

    def run_out_of_threads(self):
        """From now on this process can start none as the library does."""

        def refuse(*_):
            raise RuntimeError("can't start new thread")

        _thread.start_new_thread = refuse

    async def is_held(self):
        return getattr(self, "holds", False)

    async def hold(self):
        """Comes back after `let_go`."""
        self.held = asyncio.Event()
        await self.held.wait()
        return self.rank

    async def let_go(self):
        while not hasattr(self, "held"):
            await asyncio.sleep(0)
        self.held.set()
        return self.rank

    async def rendezvous(self, number):
        """Comes back only when two calls are inside at the same time."""
        self.inside = getattr(self, "inside", 0) + 1
        while self.inside < number:
            await asyncio.sleep(0)
        return self.inside

    def topology_seen(self):
        cluster = Cluster()
        return cluster.num_nodes, cluster.num_accelerators

    def unpicklable(self):
        return threading.Lock()

    def raise_unpicklable(self):
        class OnlyHere(Exception):
            def __init__(self, lock):
                super().__init__(lock)

        raise OnlyHere(threading.Lock())

    def raise_half_a_surrogate_pair(self):
        raise ValueError("a name like \udcff")

    async def wait_through_a_collection(self):
        self.held = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, self._collect_and_let_go)
        await self.held.wait()
        return "went on"

    def _collect_and_let_go(self):
        import gc

        gc.collect()
        self.held.set()

    def find_hardware(self):
        return self.hardware

    def log(self, text):
        self.log_info(text)

    def echo(self, value):
        return value

    def exchange(self, partner_group, partner_rank, value):
        self.send(value, partner_group, partner_rank)
        return self.recv(partner_group, partner_rank, timeout_s=60)

    def send_many(self, group, rank, count):
        handles = [self.send(index, group, rank, async_op=True) for index in range(count)]
        for handle in handles:
            handle.wait(60)

    def recv_many(self, group, rank, count):
        return [self.recv(group, rank, timeout_s=60) for _ in range(count)]

    def recv_with_timeout(self, group, rank, timeout_s):
        return self.recv(group, rank, timeout_s=timeout_s)

    def send_tensor_to(self, group, rank):
        import torch

        self.send_tensor(torch.arange(6, dtype=torch.float32).reshape(2, 3), group, rank)

    def recv_tensor_from(self, group, rank):
        import torch

        target = torch.zeros(2, 3)
        self.recv_tensor(target, group, rank, timeout_s=60)
        return target

    def join_collectives(self):
        import torch.distributed as dist

        dist.init_process_group("gloo")

    def all_reduce(self):
        import torch
        import torch.distributed as dist

        value = torch.tensor([float(self.rank)])
        dist.all_reduce(value)
        return value.item(), dist.get_rank(), dist.get_world_size(), self.node_rank

    def meet_at_a_barrier(self, gate):
        """The last rank comes to it once somebody opens its gate."""
        import torch.distributed as dist

        if self.rank == self.world_size - 1:
            with open(gate, "rb") as file:
                file.read(1)
        dist.barrier()

    def leave_collectives(self):
        import torch.distributed as dist

        dist.destroy_process_group()

    def make_a_group(self):
        """The address that each rank of a nested group says it has."""
        inner = Probe.create_group().launch(
            Cluster(), placement_strategy=NodePlacementStrategy([self.node_rank]), name="inner"
        )
        try:
            return inner.name, [who["address"] for who in inner.who().wait(60)]
        finally:
            inner.terminate()

    def device(self):
        return str(self.torch_device), self.torch_platform.__name__


class Broadcaster(Worker):
    """Sends numbered arrays to others, or receives them."""

    def spread(self, groups, src, count, timeout_s=60):
        """Whether every broadcast, sync and async, gave the source its own object."""
        sent = [np.full(100_000, number) for number in range(count)]
        half = count // 2
        handles = [
            self.broadcast(array, groups=groups, src=src, async_op=True, timeout_s=timeout_s)
            for array in sent[:half]
        ]
        first = [handle.wait() for handle in handles]
        rest = [self.broadcast(array, groups=groups, src=src, timeout_s=timeout_s) for array in sent[half:]]
        return all(one is other for one, other in zip(sent, first + rest, strict=True))

    def receive(self, groups, src, count):
        received = []
        for _ in range(count):
            array = self.broadcast(groups=groups, src=src, timeout_s=60)
            assert (array == array[0]).all()
            received.append(int(array[0]))
            array[:] = -1
        return received


class Forgetful(Worker):
    """Forgets to call super().__init__()."""

    def __init__(self):
        self.seen = self.rank

    def find(self):
        return self.seen


class Broken(Worker):
    def __init__(self, broken_rank):
        super().__init__()
        if self.rank == broken_rank:
            raise RuntimeError("the checkpoint is not there")


class Dies(Worker):
    def __init__(self):
        super().__init__()
        os.kill(os.getpid(), signal.SIGKILL)


class NeverReady(Worker):
    def __init__(self, slow_rank):
        super().__init__()
        if self.rank == slow_rank:
            threading.Event().wait(60)


class Companion(Worker):
    """Shares a device, waits for others."""

    def __init__(self):
        super().__init__()
        self.inside, self.gate = threading.Event(), threading.Event()

    def hold(self):
        with self.device_lock():
            self.log_on_first_rank("inside")
            self.inside.set()
            self.gate.wait(60)

    async def is_inside(self):
        return self.inside.is_set()

    async def let_go(self):
        self.gate.set()

    async def process_id(self):
        return os.getpid()

    def try_for(self, timeout_s):
        with self.device_lock(timeout_s):
            return True

    def ports(self, number):
        return [self.acquire_free_port() for _ in range(number)]

    def wait_for(self, group, rank):
        return self.recv(group, rank)

    def count(self, number):
        for value in range(number):
            yield value, self.rank
