"""What is known of the workers of a job, by RLinf's names; it is the job's directory."""

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
        """What is asked; `no_wait` is taken and not needed."""
        return cls()

    def register_worker(self, worker_address: WorkerAddress, worker_info: Any) -> None:
        """Nothing to do: a worker is registered by its process."""

    def is_registered(self, worker_address: WorkerAddress) -> bool:
        """Whether a worker of that name is there, or is waited for after its process has died."""
        return self._entry_of(worker_address) is not None

    def get_worker_info(self, worker_address: WorkerAddress) -> WorkerInfo | None:
        """What is known of a worker: its place, and how large its group is; None if there is none."""
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
