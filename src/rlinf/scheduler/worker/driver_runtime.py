"""What channels need of the driver: it starts the processes that hold them, its own and those of workers."""

from __future__ import annotations

import pickle
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from rlinf.scheduler.channel import ChannelSpec, set_runtime
from rlinf.scheduler.cluster.session import Session
from rlinf.scheduler.comm import Endpoint, Request
from rlinf.scheduler.errors import (
    ChannelError,
    ChannelExists,
    CommError,
    GroupExists,
    LaunchError,
    PeerNotFound,
)
from rlinf.scheduler.events import ChannelOpened, WorkerLogged
from rlinf.scheduler.placement import NodePlacementStrategy, Placement
from rlinf.scheduler.placement.nearest import list_names, nearest_name
from rlinf.scheduler.worker.channel_worker import ChannelWorker
from rlinf.scheduler.worker.device_lock import DeviceDesk
from rlinf.scheduler.worker.group import launch_group
from rlinf.scheduler.worker.info import WorkerAddress
from rlinf.scheduler.worker.launch import LaunchOptions
from rlinf.scheduler.worker.protocol import (
    LOG,
    START_CHANNEL,
    START_CHANNEL_TIMEOUT_S,
    LogLine,
    StartChannel,
    WorkerFactory,
)
from rlinf.scheduler.worker.session_runtime import SessionRuntime
from rlinf.scheduler.worker.supervision import group_entry, groups_of

_AFFINITY_TIMEOUT_S = 30.0
_ENDING_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class DriverRuntime(SessionRuntime):
    """The driver's: it starts channel processes, its own and those that workers ask for.

    A channel outlives the worker that created it, so it is the driver who owns its process.
    """

    _starters: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=4, thread_name_prefix="rlinf-channel-start")
    )

    def start_channel_server(
        self,
        name: str,
        spec: ChannelSpec,
        group_affinity: str | None = None,
        group_rank_affinity: int | None = None,
    ) -> Endpoint:
        """Start the channel's process beside a worker; on node 0 where none is named.

        Raises:
            ChannelExists: the name is taken.
            ChannelError: the worker to be beside is not there, or the process did not start.
        """
        if group_affinity is None:
            if group_rank_affinity is not None:
                raise ChannelError(
                    name, "group_rank_affinity needs group_affinity here: the driver has no group"
                )
            placement = NodePlacementStrategy([0]).get_placement(self.session)[0]
        else:
            beside = WorkerAddress(group_affinity, group_rank_affinity or 0)
            placement = _alone(self._placement_of(name, beside))
        self._wait_for_one_that_ends(spec)
        try:
            group = launch_group(
                self.session,
                WorkerFactory(ChannelWorker, (spec,), {}),
                [placement],
                name,
                LaunchOptions(timeout_s=START_CHANNEL_TIMEOUT_S, registers_itself=True),
                on_failure="end",
            )
        except GroupExists as error:
            raise ChannelExists(name, error.problem) from error
        except LaunchError as error:
            raise ChannelError(name, f"its process did not start: {error}") from error
        self.session.bus.emit(ChannelOpened(name, placement.node_rank, spec.maxsize))
        return group.endpoints[0]

    def _wait_for_one_that_ends(self, spec: ChannelSpec) -> None:
        """A deleted channel's name is free as soon as its process has ended, which takes a moment."""
        known = {entry.name for entry in self.directory.list(spec.address)}
        for group in list(groups_of(self.session)):
            if group.name == spec.name and spec.address not in known:
                group.ended.wait(_ENDING_TIMEOUT_S)

    def serve_workers(self) -> None:
        """Start channels for workers that ask, give turns on devices, and show what workers log."""
        DeviceDesk(self.messenger)
        self.messenger.serve(START_CHANNEL, self._on_request, StartChannel)
        self.messenger.serve(LOG, self._on_log, LogLine)
        self.session.on_close(lambda: self._starters.shutdown(wait=False, cancel_futures=True))

    def _on_request(self, request: Request) -> None:
        wanted: StartChannel = request.head

        def start() -> Endpoint:
            if request.is_cancelled:
                raise CommError("the worker that asked has given up")
            return self.start_channel_server(wanted.spec.name, wanted.spec, wanted.group, wanted.rank)

        # Starting a process takes a second: not on the messenger's thread.
        self._starters.submit(start).add_done_callback(lambda done: _answer(request, done))

    def _on_log(self, notice: Request) -> None:
        line: LogLine = notice.head
        event = WorkerLogged(line.group, line.rank, line.level, line.message)
        self.session.log_bus.emit(event)
        self.session.bus.emit(event)

    def _placement_of(self, channel: str, worker: WorkerAddress) -> Placement:
        self._check_group(channel, worker)
        try:
            entry = self.directory.lookup(str(worker), timeout_s=_AFFINITY_TIMEOUT_S)
        except (PeerNotFound, CommError) as error:
            raise ChannelError(channel, f"cannot be placed beside '{worker}': {error}") from error
        placement = entry.info.get("placement")
        if not isinstance(placement, bytes):
            raise ChannelError(channel, f"cannot be placed beside '{worker}': where it is is not known")
        found: Placement = pickle.loads(placement)
        return found

    def _check_group(self, channel: str, worker: WorkerAddress) -> None:
        """Raise unless there is such a worker, or will be: a group is known as soon as its launch begins."""
        prefix = group_entry("")
        entries = self.directory.list(prefix)
        sizes = {e.name.removeprefix(prefix): e.info["world_size"] for e in entries if "world_size" in e.info}
        size = sizes.get(worker.group)
        if size is None:
            near = nearest_name(worker.group, sizes)
            hint = f"; did you mean '{near}'?" if near else ""
            there = f"there are {list_names(sizes)}" if sizes else "none was launched"
            raise ChannelError(channel, f"there is no group '{worker.group}' of workers: {there}{hint}")
        if not 0 <= worker.rank < size:
            problem = f"group '{worker.group}' has ranks 0 to {size - 1}, not {worker.rank}"
            raise ChannelError(channel, problem)


def install_driver_runtime(session: Session) -> None:
    """Make channels usable in the driver, and let workers create them."""
    runtime = DriverRuntime(session)
    runtime.serve_workers()
    set_runtime(runtime)
    session.on_close(lambda: set_runtime(None, session.failure))


def _alone(placement: Placement) -> Placement:
    return replace(placement, rank=0, placement_node_rank=0, local_rank=0, local_world_size=1)


def _answer(request: Request, started: Future[Endpoint]) -> None:
    if started.cancelled():
        request.fail(CommError("the driver is leaving"))
        return
    error = started.exception()
    if error is not None:
        request.fail(error)
    else:
        request.reply(started.result())
