"""The driver starts the processes that hold channels, its own and those that workers ask for."""

from __future__ import annotations

import pickle
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from rlinf.scheduler.channel.spec import ChannelSpec
from rlinf.scheduler.channel.starting import START_CHANNEL, START_TIMEOUT_S, StartChannel, Starter
from rlinf.scheduler.comm import Endpoint, Request
from rlinf.scheduler.errors import (
    ChannelError,
    ChannelExists,
    CommError,
    GroupExists,
    LaunchError,
    PeerNotFound,
)
from rlinf.scheduler.events import ChannelOpened
from rlinf.scheduler.host.channel_worker import ChannelWorker
from rlinf.scheduler.host.info import WorkerAddress, job_topology
from rlinf.scheduler.host.protocol import WorkerFactory
from rlinf.scheduler.planning import NodePlacementStrategy, Placement
from rlinf.scheduler.session import Session
from rlinf.scheduler.wording import did_you_mean, list_names
from rlinf.scheduler.worker.group import WorkerGroup, launch_group
from rlinf.scheduler.worker.launch import LaunchOptions
from rlinf.scheduler.worker.supervision import groups_in, groups_of

_AFFINITY_TIMEOUT_S = 30.0
_ENDING_TIMEOUT_S = 10.0


class ChannelStarter(Starter):
    """The driver's.

    A channel outlives the worker that created it, so it is the driver who owns its process.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="rlinf-channel-start")
        session.messenger.serve(START_CHANNEL, self._on_request, StartChannel)
        session.on_close(lambda: self._threads.shutdown(wait=False, cancel_futures=True))

    def start(self, wanted: StartChannel) -> Endpoint:
        """Start the channel's process beside a worker; on node 0 where none is named.

        Raises:
            ChannelExists: the name is taken.
            ChannelError: the worker to be beside is not there, or the process did not start.
        """
        return self._launch(wanted, None).endpoints[0]

    def _launch(self, wanted: StartChannel, asker: WorkerAddress | None) -> WorkerGroup[ChannelWorker]:
        spec = wanted.spec
        placement = self._placement_of(wanted, asker)
        self._wait_for_one_that_ends(spec)
        try:
            group: WorkerGroup[ChannelWorker] = launch_group(
                self._session,
                WorkerFactory(ChannelWorker, (spec,), {}),
                [placement],
                spec.name,
                LaunchOptions(timeout_s=START_TIMEOUT_S, registers_itself=True),
                on_failure="end",
            )
        except GroupExists as error:
            raise ChannelExists(spec.name, error.problem) from error
        except LaunchError as error:
            raise ChannelError(spec.name, f"its process did not start: {error}") from error
        self._session.bus.emit(ChannelOpened(spec.name, placement.node_rank, spec.maxsize))
        return group

    def _wait_for_one_that_ends(self, spec: ChannelSpec) -> None:
        """A deleted channel's name is free as soon as its process has ended, which takes a moment."""
        known = {entry.name for entry in self._session.directory.list(spec.address)}
        for group in list(groups_of(self._session)):
            if group.name == spec.name and spec.address not in known:
                group.ended.wait(_ENDING_TIMEOUT_S)

    def _on_request(self, request: Request) -> None:
        # Starting a process takes a second: not on the messenger's thread.
        self._threads.submit(self._start_for, request).add_done_callback(lambda done: _answer(request, done))

    def _start_for(self, request: Request) -> Endpoint:
        if _is_given_up(request):
            raise CommError("the worker that asked has given up")
        group = self._launch(request.head, WorkerAddress.parse(request.peer_name))
        if _is_given_up(request):  # meanwhile: nobody will ever know of this channel
            group.terminate()
        return group.endpoints[0]

    def _placement_of(self, wanted: StartChannel, asker: WorkerAddress | None) -> Placement:
        channel, group, rank = wanted.spec.name, wanted.group, wanted.rank
        if asker is not None and group in (None, asker.group):
            group, rank = asker.group, asker.rank if rank is None else rank
        if group is None:
            if rank is not None:
                raise ChannelError(
                    channel, "group_rank_affinity needs group_affinity here: the driver has no group"
                )
            return NodePlacementStrategy([0]).get_placement(job_topology(self._session))[0]
        beside = self._placement_beside(channel, WorkerAddress(group, rank or 0))
        return replace(beside, rank=0, placement_node_rank=0, local_rank=0, local_world_size=1)

    def _placement_beside(self, channel: str, worker: WorkerAddress) -> Placement:
        self._check_group(channel, worker)
        try:
            entry = self._session.directory.lookup(str(worker), timeout_s=_AFFINITY_TIMEOUT_S)
        except (PeerNotFound, CommError) as error:
            raise ChannelError(channel, f"cannot be placed beside '{worker}': {error}") from error
        placement = entry.info.get("placement")
        if not isinstance(placement, bytes):
            raise ChannelError(channel, f"cannot be placed beside '{worker}': where it is is not known")
        found: Placement = pickle.loads(placement)
        return found

    def _check_group(self, channel: str, worker: WorkerAddress) -> None:
        """Raise unless there is such a worker, or will be: a group is known as soon as its launch begins."""
        groups = groups_in(self._session)
        group = groups.get(worker.group)
        if group is None:
            hint = did_you_mean(worker.group, groups)
            there = f"there are {list_names(groups)}" if groups else "none was launched"
            problem = "; ".join(
                filter(None, [f"there is no group '{worker.group}' of workers: {there}", hint])
            )
            raise ChannelError(channel, problem)
        if not 0 <= worker.rank < group.world_size:
            problem = f"group '{worker.group}' has ranks 0 to {group.world_size - 1}, not {worker.rank}"
            raise ChannelError(channel, problem)


def _is_given_up(request: Request) -> bool:
    return request.is_cancelled


def _answer(request: Request, started: Future[Endpoint]) -> None:
    if started.cancelled():
        request.fail(CommError("the driver is leaving"))
        return
    error = started.exception()
    if error is not None:
        request.fail(error)
    else:
        request.reply(started.result())
