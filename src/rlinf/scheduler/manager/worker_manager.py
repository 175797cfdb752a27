"""The directory of a job's workers, by RLinf's names."""

from __future__ import annotations

import pickle
from typing import Any

from rlinf.scheduler.manager.addresses import WorkerAddress, WorkerInfo
from rlinf_scheduler.errors import CommError
from rlinf_scheduler.host.info import job_topology
from rlinf_scheduler.session import current_session

__all__ = ["WorkerAddress", "WorkerInfo", "WorkerManager"]


class WorkerManager:
    """Answers what is known of a worker, in any process of the job."""

    @classmethod
    def get_proxy(cls, no_wait: bool = False) -> WorkerManager:
        """Return the one to ask; `no_wait` is taken and not needed."""
        return cls()

    def is_registered(self, worker_address: WorkerAddress) -> bool:
        """Return whether a worker of that name is there, or is waited for after its process has died."""
        return self._entry_of(worker_address) is not None

    def get_worker_info(self, worker_address: WorkerAddress) -> WorkerInfo | None:
        """Return a worker's place, and the size of its group; None if there is no such worker."""
        entry = self._entry_of(worker_address)
        if entry is None or "placement" not in entry.info:
            return None
        session = current_session()
        placement = pickle.loads(entry.info["placement"])
        node = job_topology(session).nodes[placement.node_rank]
        return WorkerInfo(
            address=worker_address,
            world_size=session.directory.group_sizes().get(worker_address.group, 0),
            placement=placement,
            node_ip=node.ip,
            hostname=node.hostname,
            pid=0,
            master_address="",
            master_port=0,
        )

    def _entry_of(self, address: WorkerAddress) -> Any:
        try:
            return current_session().directory.lookup(str(address), timeout_s=0)
        except CommError:
            return None
