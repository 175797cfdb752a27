"""A group of workers without Ray: ranks on threads of this process, called through a real `WorkerGroup`."""

import contextlib
import threading
from dataclasses import replace

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import ClusterSecret
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.host.call_loop import CallLoop
from rlinf_scheduler.host.info import Role
from rlinf_scheduler.planning import Placement, Topology
from rlinf_scheduler.session import Session, set_current
from rlinf_scheduler.session.membership import GroupMembers, GroupMembership
from rlinf_scheduler.worker.device_lock import DeviceLockServer
from rlinf_scheduler.worker.group import WorkerGroup
from rlinf_scheduler.worker.order import LaunchOptions
from rlinf_scheduler.worker.processes import LaunchedRank
from rlinf_scheduler.worker.supervision import Supervision, groups_of

DEADLINE_S = 60.0


class ThreadOfThisProcess:
    """What a rank has instead of a process."""

    def kill(self):
        """It ends with its loop."""


class LocalJob:
    """A driver, and groups whose ranks are threads; every rank has a session of its own."""

    def __init__(self):
        self._stack = contextlib.ExitStack()
        self._secret = ClusterSecret.generate()
        self.session = Session(self._secret, "driver")
        self.session.service(DeviceLockServer)

    def make_session(self, name):
        session = Session(self._secret, name, home=self.session.home)
        session.provide(Topology, Topology.parse("4"))
        self._stack.callback(session.close)
        return session

    def launch(self, worker_class, num_ranks, *args, name="calc", max_concurrency=1, placements=None):
        """A group; the workers are `group.workers`, their loops `group.loops`."""
        ranks, workers, loops = [], [], []
        for rank in range(num_ranks):
            address = WorkerAddress(name, rank)
            session = self.make_session(str(address))
            session.directory.register(str(address), session.messenger.endpoint)
            loop = CallLoop(session.messenger)
            placement = placements[rank] if placements else Placement(rank=rank, node_id="n", node_rank=0)
            worker = self._construct(worker_class, args, address, session, placement, num_ranks)
            loop.take(worker)
            thread = threading.Thread(target=loop.run, args=(max_concurrency,), daemon=True)
            thread.start()
            self._stack.callback(_stop, loop, thread)
            launched = LaunchedRank(address, placement, ThreadOfThisProcess())
            launched.endpoint = session.messenger.endpoint
            ranks.append(launched)
            workers.append(worker)
            loops.append(loop)
        launched = Promise()
        launched.set_result(
            Supervision(self.session, GroupMembers(name, tuple(range(num_ranks))), ranks, LaunchOptions())
        )
        group = WorkerGroup(name, worker_class, len(ranks), launched)
        group.workers, group.loops = workers, loops
        return group

    def _construct(self, worker_class, args, address, session, placement, num_ranks):
        info = replace(Role.alone().info, address=address, world_size=num_ranks, placement=placement)
        session.provide(Role, Role(info))
        members = GroupMembers(address.group, tuple(range(num_ranks)))
        session.provide(GroupMembership, GroupMembership(members, 1, address.rank))
        set_current(session)
        try:
            return worker_class(*args)
        finally:
            set_current(None)

    def close(self):
        self._stack.close()
        groups_of(self.session).clear()  # there is no process to end
        self.session.close()


def _stop(loop, thread):
    loop.stop()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
