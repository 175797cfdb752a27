"""What a worker's process knows about itself, put in place by its host before the user's class is constructed."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass

from rlinf.scheduler.cluster.session import Session
from rlinf.scheduler.errors import ClusterError
from rlinf.scheduler.mailbox import Mailbox
from rlinf.scheduler.planning import Placement
from rlinf.scheduler.worker.info import WorkerAddress, WorkerInfo


def _nothing_to_stop() -> None:
    """Nobody hosts a worker that was constructed by hand."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """A worker's identity and, in a launched process, its membership in the job; `stop` ends its process."""

    info: WorkerInfo
    session: Session | None = None
    own_mailbox: Mailbox | None = None
    hardware: tuple[object, ...] = ()
    stop: Callable[[], None] = _nothing_to_stop

    @property
    def mailbox(self) -> Mailbox:
        """Sends to and receives from other workers.

        Raises:
            ClusterError: the worker was constructed by hand, not launched.
        """
        if self.own_mailbox is None:
            raise ClusterError("this worker was constructed directly: launch its group to communicate")
        return self.own_mailbox


_ALONE = WorkerContext(
    WorkerInfo(
        address=WorkerAddress("local", 0),
        world_size=1,
        placement=Placement(rank=0, node_id="", node_rank=0),
        node_ip="127.0.0.1",
        hostname=platform.node(),
        pid=os.getpid(),
        master_address="127.0.0.1",
        master_port=0,
    )
)
_current: WorkerContext = _ALONE


def set_context(context: WorkerContext) -> None:
    """Tell this process which worker it is."""
    global _current
    _current = context


def context_of_this_process() -> WorkerContext:
    """Which worker this process is; rank 0 of 1 where nobody launched it."""
    return _current
