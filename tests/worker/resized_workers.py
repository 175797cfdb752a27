"""Workers of the tests about groups that grow and shrink; a module of their own, for workers import them by name."""

import asyncio
import os
import signal
import threading
from datetime import timedelta

import numpy as np

from rlinf.scheduler import Channel, Worker
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import CommError, PlacementError
from rlinf_scheduler.session import current_session
from rlinf_scheduler.session.membership import RESIZED, Draining, GroupMembers, GroupMembership
from waits import wait_until

DEADLINE_S = 60.0


class Member(Worker):
    """Says who it is, and whom it knows."""

    def __init__(self, offset=0, fails_from=1 << 30, stays_away_s=0):
        super().__init__()
        if self.num_restarts:
            threading.Event().wait(stays_away_s)
        self.offset = offset
        self.let_go = threading.Event()
        self.is_ready = False
        if self.rank >= fails_from:
            raise ValueError(f"rank {self.rank} is not wanted")

    def become_ready(self):
        self.is_ready = True

    def who(self):
        return self.rank, os.getpid(), self.offset

    def ready(self):
        return self.is_ready

    def known(self):
        """The ranks that this one knows of, and how often they changed."""
        members = current_session().fact(GroupMembership).members
        return members.ranks, members.epoch

    def environment(self):
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "MASTER_PORT")
        return {name: os.environ.get(name) for name in names}

    def hold(self):
        """Until somebody calls `release`, or the rank leaves."""
        drained = current_session().service(Draining).began
        drained.add_done_callback(lambda _: self.let_go.set())
        assert self.let_go.wait(DEADLINE_S)
        return self.rank

    def time_left(self):
        """How many seconds it is given to leave, once it is to."""
        assert current_session().service(Draining).began.wait(DEADLINE_S)
        return self.draining_left_s

    def hear_of_less(self, than_s):
        """Until it is given less time to leave than that, in seconds."""
        wait_until(lambda: (left_s := self.draining_left_s) is not None and left_s < than_s)
        return self.rank

    def take_one(self, channel):
        """One item, whatever is asked of it."""
        return Channel.connect(channel).get(timeout_s=DEADLINE_S)

    def stay(self):
        """Whatever is asked of it."""
        assert self.let_go.wait(DEADLINE_S)

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    async def release(self):
        self.let_go.set()

    def end_late(self):
        """When this rank is to end, say so to the driver, and go on once somebody says so; who does that."""
        session = current_session()
        goes_on = Promise()
        session.messenger.serve("test.go", lambda _: goes_on.set_result(None), None)

        def wait():
            session.messenger.notify(session.home, "test.ends", self.rank)
            assert goes_on.wait(DEADLINE_S)

        session.on_close_first(wait)
        return session.messenger.endpoint

    def count(self, number):
        yield from range(number)

    def echo(self, mine, common):
        return self.rank, mine, common


class Caller(Worker):
    """Calls a group that was sent to it, until it is told to end."""

    def __init__(self):
        super().__init__()
        self.over, self.begun = threading.Event(), threading.Event()

    def call(self, group):
        """Return which ranks have answered, each time other ones than before, and how often it has called."""
        seen, number = [], 0
        while not self.over.is_set():
            ranks = tuple(who[0] for who in group.who().wait(DEADLINE_S))
            number += 1
            if not seen or seen[-1] != ranks:
                seen.append(ranks)
        return seen, number

    def left(self, group, rank):
        """What a view says of a rank that has left, and whom the group has."""
        try:
            group.execute_on(rank).who().wait(DEADLINE_S)
        except PlacementError as error:
            return str(error), group.ranks
        return "", group.ranks

    def keep(self, group):
        self.kept = group

    def call_and_let_go(self, endpoint, rank):
        """What a call comes to that reaches a rank when that begins nothing any more, and goes then."""
        view = self.kept if rank is None else self.kept.execute_on(rank)
        results = view.who(), view.count(2)
        current_session().messenger.notify(endpoint, "test.go", None)
        return [who[0] for who in results[0].wait(DEADLINE_S)], list(results[1])

    def hear_nothing(self):
        """Of resizes."""
        messenger = current_session().messenger
        messenger.unserve(RESIZED)
        messenger.serve(RESIZED, lambda request: request.reply(None), GroupMembers)

    def call_kept(self):
        return self.kept.who().wait(DEADLINE_S)

    def call_before_it_hears(self, rank):
        """What a call says that begins once `end` was called, and before this process hears that ranks have left."""
        group = self.kept if rank is None else self.kept.execute_on(rank)
        shared = self.kept._shared
        begin, start, hear = shared.begin, shared._start, shared._hear

        def begin_late(call, result):
            shared._hear = lambda: None
            self.begun.set()
            assert self.over.wait(DEADLINE_S)
            begin(call, result)

        def hear_at_the_failure(call):
            never_begun = call._never_begun

            def look(index, error):
                shared._hear = hear
                return never_begun(index, error)

            call._never_begun = look  # which may be as it is started: there is nothing to connect to any more
            start(call)

        shared.begin, shared._start = begin_late, hear_at_the_failure
        try:
            return [who[0] for who in group.who().wait(DEADLINE_S)]
        except PlacementError as error:
            return str(error)

    async def begins(self):
        assert await asyncio.to_thread(self.begun.wait, DEADLINE_S)

    async def end(self):
        self.over.set()


class Collective(Worker):
    """Meets the others of its group with gloo, when it begins and whenever the group has other ranks."""

    def __init__(self, fails_from=1 << 30, stuck="", dies_from=1 << 30):
        super().__init__()
        self.stuck = stuck
        self.seen = []
        self.let_go = threading.Event()
        if self.rank >= dies_from and not self.num_restarts:
            os.kill(os.getpid(), signal.SIGKILL)
        self.meet()
        if self.rank >= fails_from:
            raise ValueError(f"rank {self.rank} is not wanted")

    def meet(self):
        import torch.distributed as dist

        dist.init_process_group("gloo", timeout=timedelta(seconds=DEADLINE_S))

    def on_resize(self, old, new):
        import torch.distributed as dist

        self.seen.append((old.ranks, new.ranks))
        if self.stuck == str(self.rank):
            threading.Event().wait(DEADLINE_S)
        if self.stuck == "raises":
            raise ValueError("it does not follow")
        dist.destroy_process_group()
        if self.rank in new:
            self.meet()

    def total(self):
        """The sum of all ranks' numbers; this one's place, and how many there are."""
        import torch
        import torch.distributed as dist

        value = torch.tensor([float(self.rank)])
        dist.all_reduce(value)
        return value.item(), dist.get_rank(), dist.get_world_size()

    def followed(self):
        return self.seen

    def hold(self):
        """Until somebody calls `release`."""
        assert self.let_go.wait(DEADLINE_S)
        return self.rank

    async def release(self):
        self.let_go.set()

    def pid(self):
        return os.getpid()

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Stubborn(Collective):
    """Runs collectives, and does not follow."""

    on_resize = None


class Follower(Member):
    """Runs none, and is told all the same."""

    async def on_resize(self, old, new):
        self.followed = (old.ranks, new.ranks, current_session().fact(GroupMembership).members.ranks)
        if hasattr(self, "leaving"):
            self.leaving.set_result(self.draining)

    async def leaves(self):
        """Whether it knows that it leaves, when it follows."""
        self.leaving = asyncio.get_running_loop().create_future()
        return await self.leaving

    def told(self):
        return getattr(self, "followed", None)


class Unhurried(Member):
    """Follows beside its calls; who stays, once somebody says so."""

    def __init__(self):
        super().__init__()
        self.follows = Promise()

    async def on_resize(self, old, new):
        if self.rank in new:
            await asyncio.to_thread(self.follows.wait, DEADLINE_S)

    async def follow(self):
        self.follows.set_result(None)


class Fragile(Member):
    """Its first rank dies as it follows for the first time."""

    def on_resize(self, old, new):
        if self.rank == 0 and not self.num_restarts:
            self.die()


class Reluctant(Member):
    """Runs none, and fails to follow."""

    def on_resize(self, old, new):
        raise ValueError("it does not follow")


class Exchanging(Worker):
    """Exchanges with groups whatever ranks they have."""

    def send_rows(self, group):
        self.send_to(group, [(self.rank, row) for row in range(6)], timeout_s=DEADLINE_S)

    def recv_rows(self, group):
        return self.recv_from(group, timeout_s=DEADLINE_S)

    def send_one(self, group, rank):
        try:
            self.send("hello", group, rank, timeout_s=DEADLINE_S)
        except CommError as error:
            return type(error).__name__, str(error)
        return None

    def recv_one(self, group):
        return self.recv(group, 0, timeout_s=DEADLINE_S)

    def have_devices_together(self):
        with self.device_lock(DEADLINE_S, group=True):
            return self.members.ranks

    def want_devices_together(self):
        self.wanted = self.device_lock(DEADLINE_S, group=True)

    def have_devices_as_wanted(self):
        with self.wanted:
            return self.members.ranks

    def publish(self, version):
        self.publish_weights(
            "policy", {f"layer.{self.rank}": np.full(4, version)}, version, ranks=self.members.ranks
        )

    def fetch(self, version, ranks):
        into = {f"layer.{rank}": np.zeros(4, np.int64) for rank in ranks}
        self.fetch_weights("policy", into, version, timeout_s=DEADLINE_S)
        return [values[0] for values in into.values()]


class Eager(Member):
    """Takes its part of a step as it starts; one rank fails then."""

    def __init__(self, channel, fails):
        super().__init__()
        self.shard = channel.shard(self.rank, self.members, batch_items=4)
        self.taken = [*self.shard.next_batch(DEADLINE_S)]
        if self.rank == fails:
            raise ValueError(f"rank {self.rank} is not wanted")

    def take(self, steps):
        for _ in range(steps):
            self.taken += self.shard.next_batch(DEADLINE_S)
        return self.taken
