"""A group of workers without Ray: ranks on threads of this process, called through a real `WorkerGroup`."""

import contextlib
import threading
import time
from dataclasses import replace

from rlinf.scheduler.cluster.bus import EventBus
from rlinf.scheduler.cluster.session import Session
from rlinf.scheduler.comm import DirectoryClient, DirectoryServer
from rlinf.scheduler.mailbox import Mailbox
from rlinf.scheduler.placement import Placement, Topology
from rlinf.scheduler.worker.call_loop import CallLoop
from rlinf.scheduler.worker.context import WorkerContext, context_of_this_process, set_context
from rlinf.scheduler.worker.device_lock import DeviceDesk
from rlinf.scheduler.worker.group import WorkerGroup
from rlinf.scheduler.worker.info import WorkerAddress
from rlinf.scheduler.worker.launched_rank import LaunchedRank

DEADLINE_S = 20.0


class LocalJob:
    """A driver, and groups whose ranks are threads; the ranks have messengers and mailboxes of their own."""

    def __init__(self, new_messenger, secret):
        self._new_messenger = new_messenger
        self._secret = secret
        self._stack = contextlib.ExitStack()
        self.messenger = new_messenger("driver")
        DirectoryServer(self.messenger)
        DeviceDesk(self.messenger)
        self.session = self.make_session(self.messenger, "driver")

    def make_session(self, messenger, name):
        return Session(
            own_name=name,
            topology=Topology.parse("4"),
            messenger=messenger,
            directory=DirectoryClient(messenger, self.messenger.endpoint),
            directory_endpoint=self.messenger.endpoint,
            secret=self._secret,
            crosses_machines=False,
            bus=EventBus(),
            log_bus=EventBus(),
        )

    def launch(self, worker_class, num_ranks, *args, name="calc", max_concurrency=1, placements=None):
        """A group; the workers are `group.workers`, their loops `group.loops`."""
        ranks, workers, loops = [], [], []
        for rank in range(num_ranks):
            address = WorkerAddress(name, rank)
            messenger = self._new_messenger(str(address))
            session = self.make_session(messenger, str(address))
            session.directory.register(str(address), messenger.endpoint)
            loop = CallLoop(messenger)
            placement = placements[rank] if placements else Placement(rank=rank, node_id="n", node_rank=0)
            worker = self._construct(worker_class, args, address, session, placement, num_ranks)
            thread = threading.Thread(target=loop.run, args=(worker, max_concurrency), daemon=True)
            thread.start()
            self._stack.callback(_stop, loop, thread)
            launched = LaunchedRank(address, placement, None)
            launched.endpoint = messenger.endpoint
            ranks.append(launched)
            workers.append(worker)
            loops.append(loop)
        group = WorkerGroup(self.session, name, worker_class, ranks)
        group.workers, group.loops = workers, loops
        return group

    def _construct(self, worker_class, args, address, session, placement, num_ranks):
        alone = context_of_this_process()
        info = replace(alone.info, address=address, world_size=num_ranks, placement=placement)
        mailbox = Mailbox(session.messenger, session.directory, str(address))
        set_context(WorkerContext(info, session, mailbox))
        try:
            return worker_class(*args)
        finally:
            set_context(alone)

    def close(self):
        self._stack.close()


def _stop(loop, thread):
    loop.stop()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.002)
