"""Workers as RLinf's programs write them; in a module of their own, so that ranks import them by name."""

import os
import threading

from rlinf.scheduler import Worker, WorkerGroup

VARIABLES = (
    "GROUP_NAME",
    "WORKER_NAME",
    "CLUSTER_NODE_RANK",
    "NODE_GROUP_LABEL",
    "NODE_LOCAL_RANK",
    "NODE_LOCAL_WORLD_SIZE",
    "LOCAL_ACCELERATOR_RANK",
    "LOCAL_HARDWARE_RANKS",
    "VISIBLE_DEVICES",
    "ISOLATE_ACCELERATOR",
    "ACCELERATOR_TYPE",
    "LOCAL_RANK",
)


class ModelManager:
    """A part of an actor that is no worker, and does not call the next `__init__`."""

    def __init__(self, cfg, world_size, rank):
        self.cfg = cfg
        self.shard = (rank, world_size)
        self.device = Worker.torch_platform.current_device()


class Actor(ModelManager, Worker):
    """Its `__init__` calls that of `Worker` in the middle, and uses it before."""

    def __init__(self, cfg, placement=None):
        self.early = (self._rank, self._world_size, self._cluster_node_rank)
        Worker.__init__(self)
        super().__init__(cfg, self._world_size, self._rank)
        self.placement = placement
        self.gate = threading.Event()

    def who(self):
        """What RLinf's programs read of a worker."""
        info, address = self.worker_info, self.worker_address
        return {
            "early": self.early,
            "shard": self.shard,
            "name": (self.get_name(), self._worker_name, address.get_name(), self._group_name),
            "root": (address.root_group_name, address.rank, self.get_parent_rank()),
            "place": (self._cluster_node_rank, self._node_local_rank, self._local_accelerator_rank),
            "info": (info.rank, info.group_world_size, info.cluster_node_rank, info.accelerator_rank),
            "global": (self.global_accelerator_ids, info.available_accelerators),
            "hardware": len(info.hardware_infos),
            "kind": (self.has_accelerator, self.hardware_type, str(self.accelerator_type.value)),
            "torch": (str(self.device), Worker.torch_device_type, Worker.torch_platform.is_available()),
            "placement": self.placement,
            "current": Worker.current_worker is self,
        }

    def environment(self):
        """What is in its environment."""
        return {name: os.environ.get(name) for name in VARIABLES}

    def reassign(self):
        """Programs set what they read."""
        self._rank, self._world_size, self._group_name, self.worker_info = 7, 8, "other", None
        return self._rank, self._world_size, self._group_name, self.worker_info

    def run_training(self):
        """Train, in a block that is named after this method."""
        with self.device_lock, self.worker_timer(), self.worker_timer("sample"), self.timer("inner"):
            pass
        return self._rank

    @Worker.timer("actor/recv_traj")
    async def recv(self):
        """Is timed by a decorator."""

    @Worker.timer()
    def evaluate(self, number=1):
        """Is timed under its own name."""
        return number

    def ports(self, highest):
        """A free port up to one, and any."""
        return self.acquire_free_port(max_port_num=highest), self.acquire_free_port()

    def pop_own(self):
        """What an asynchronous worker does with its own timers."""
        with self.worker_timer("step"):
            pass
        first = self.pop_execution_time("step") >= 0
        return first, self.pop_execution_times()

    def others(self, group, missing):
        """What it learns of other workers."""
        found = self._manager_proxy.get_worker_info(type(self.worker_address)(group, ranks=0))
        none = self.manager_proxy.get_worker_info(type(self.worker_address)(missing, ranks=0))
        alive = [
            self.manager_proxy.is_registered(type(self.worker_address)(name, 0)) for name in (group, missing)
        ]
        return found.group_world_size, found.cluster_node_rank, none, alive

    def found(self, name):
        """Calls a group that it finds by its name."""
        group = WorkerGroup.from_group_name(Forgetful, name)
        return group.execute_on(0).shutdown().wait(60), group.shutdown().consume_durations()

    def log(self):
        """Log by the class, as functions do that have no worker."""
        Worker.logger.warning("logged by the class")


class Forgetful(Worker):
    """Does not call `Worker.__init__` at all; has names of groups."""

    def __init__(self, start=0):
        self.start = start

    def worker_group_name(self):
        """Its own."""
        return f"{self.start + self._rank}"

    def shutdown(self):
        """Its own, too."""
        return "not yet"
