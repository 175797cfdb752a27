"""The driver finds processes for channels, its own and those that workers ask for; it starts and ends them."""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from rlinf_scheduler.addresses import Rank, WorkerAddress, worker_address
from rlinf_scheduler.channel.spec import ChannelSpec
from rlinf_scheduler.channel.starting import (
    CHANNEL_STOPPED,
    FIND_HOLDER,
    HOLD_CHANNEL,
    HOLD_TIMEOUT_S,
    RECOVER_TIMEOUT_S,
    RESTORE_TIMEOUT_S,
    START_CHANNEL,
    START_TIMEOUT_S,
    ChannelStopped,
    HoldChannel,
    StartChannel,
    Starter,
    check_group,
)
from rlinf_scheduler.comm import Endpoint, Request
from rlinf_scheduler.comm.loop import ending
from rlinf_scheduler.comm.peer import Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.errors import (
    ChannelError,
    ChannelExists,
    CheckpointError,
    CommError,
    PeerDied,
    PeerNotFound,
)
from rlinf_scheduler.events import ChannelOpened, ChannelRestored, WorkerGivenUp, WorkerLost
from rlinf_scheduler.host.channel_worker import Channels
from rlinf_scheduler.host.info import group_entry, job_topology
from rlinf_scheduler.host.protocol import WorkerFactory
from rlinf_scheduler.planning import NodePlacementStrategy, Placement
from rlinf_scheduler.session import Session
from rlinf_scheduler.wording import list_names
from rlinf_scheduler.worker.channel_pool import ChannelPool
from rlinf_scheduler.worker.deaths import Restarts
from rlinf_scheduler.worker.home import Claim, begin_beside, launch_group
from rlinf_scheduler.worker.order import GroupOrder, LaunchOptions
from rlinf_scheduler.worker.signatures import encoded_factory
from rlinf_scheduler.worker.supervision import Supervision

_log = Reporter(__name__)
_AFFINITY_TIMEOUT_S = 30.0
# How long a process that shares is kept when its last channel is gone: the next one need not wait for a start.
WARM_S = 60.0
# A durable channel that could not be started again is tried so much later.
AGAIN_S = 1.0
# A process may die while a channel is on its way there; then another is found.
_NUM_TRIES = 3


@dataclass(slots=True, eq=False)
class _Opening:
    """A channel on its way to a process; its creator cancels `started` to give it up.

    Attributes:
        wanted: the channel; None for the items of a node, which go to one of its processes that hold channels, too.
        seat: its name in the pool.
        placement: where it is to be.
        started: to be completed with how its process is reached.
        tries_left: how often another process is found.
        since: of a durable channel that is started again: when its process was found to be gone.
    """

    wanted: StartChannel | None
    seat: str
    placement: Placement
    started: Promise[Endpoint]
    tries_left: int = _NUM_TRIES
    since: float | None = None


@dataclass(slots=True, eq=False)
class _ChannelProcess:
    """A process that holds channels, or will.

    Attributes:
        number: the pool's.
        group: the process itself, once it runs.
        waiting: channels that go there when it does.
        lost: the names of the channels that it held when it was found to be gone.
    """

    number: int
    group: Supervision | None = None
    waiting: list[_Opening] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @property
    def endpoint(self) -> Endpoint | None:
        return None if self.group is None else self.group.ranks[0].endpoint


@dataclass(slots=True, eq=False)
class _Durable:
    """A durable channel that is held: how it is started again."""

    spec: ChannelSpec
    opening: _Opening
    restarts: Restarts = field(default_factory=Restarts)


class ChannelStarter(Starter):
    """The driver's.

    A channel outlives the worker that created it, so it is the driver who owns the processes that hold them. Which
    holds which, the I/O thread alone decides, by a `ChannelPool`.

    Args:
        session: the driver's.
        shares: whether channels share processes, where they do not say themselves.
    """

    def __init__(self, session: Session, *, shares: bool = True) -> None:
        super().__init__(session)
        self._shares = shares
        self._messenger = session.messenger
        self._pool = ChannelPool()
        self._processes: dict[int, _ChannelProcess] = {}
        # Of the channels that are held, by their ids.
        self._names: dict[str, str] = {}
        self._durable: dict[str, _Durable] = {}
        self._messenger.serve(START_CHANNEL, self._on_request, StartChannel)
        self._messenger.serve(FIND_HOLDER, self._on_find_holder, None)
        self._messenger.serve(CHANNEL_STOPPED, self._on_stopped, ChannelStopped)
        self._messenger.on_peer_lost(self._on_peer_lost)

    def begin(self, wanted: StartChannel, started: Promise[Endpoint]) -> None:
        """Have a channel held, without waiting for it: near a worker, or on node 0 where none is named."""
        self._check_free(wanted.spec.name)
        self._messenger.run_beside(self._place_and_open, wanted, None, started)

    def find_holder(self, found: Promise[Endpoint]) -> None:
        """Find the process that holds items of the driver's node, or have one started."""
        self._messenger.run_beside(self._find_holder, None, found)

    def launch(self, placement: Placement) -> Supervision:
        """Start a process that holds channels; it takes a second or two."""
        options = LaunchOptions(timeout_s=START_TIMEOUT_S, registers_itself=True, on_failure="end")
        factory = encoded_factory(WorkerFactory(Channels, (), {}))
        order = GroupOrder(factory, (placement,), options)
        claim = Claim(self._session, {})
        launch = partial(launch_group, self._session, order)
        return claim.launch(launch, claim.take(None, Channels.__name__))

    def _hand_over(self, wanted: StartChannel, started: Promise[Endpoint]) -> None:
        placement = self._place(wanted, None)
        self._open_soon(_Opening(wanted, wanted.spec.channel_id, placement, started))

    def _place_and_open(
        self, wanted: StartChannel, asker: WorkerAddress | None, started: Promise[Endpoint]
    ) -> None:
        """What a thread of its own does for a channel: its place may have to be waited for."""
        try:
            placement = self._place(wanted, asker)
        except BaseException as error:  # noqa: BLE001 - it belongs to the waiter for the channel
            started.set_exception(error)
        else:
            self._open_soon(_Opening(wanted, wanted.spec.channel_id, placement, started))

    def _find_holder(self, asker: WorkerAddress | None, found: Promise[Endpoint]) -> None:
        """What a thread of its own does for a holder: where its asker is may have to be looked up."""
        try:
            beside = self._anywhere_on(0) if asker is None else self._placement_beside("", asker)
        except BaseException as error:  # noqa: BLE001 - it belongs to the waiter for the holder
            found.set_exception(error)
        else:
            seat = f"the items of node {beside.node_rank}"
            self._open_soon(_Opening(None, seat, self._anywhere_on(beside.node_rank), found))

    def _open_soon(self, opening: _Opening) -> None:
        self._messenger.submit(ending(partial(self._open, opening), opening.started.set_exception))

    # -- the I/O thread --------------------------------------------------------------------------

    def _on_find_holder(self, request: Request) -> None:
        found: Promise[Endpoint] = Promise()
        self._messenger.run_beside(self._find_holder, _worker(request), found)

        def answer() -> None:
            error = found.exception(0)
            if error is not None:
                request.fail(error)
            else:
                request.reply(found.result(0))

        found.add_done_callback(lambda _: self._messenger.submit(answer))

    def _on_request(self, request: Request) -> None:
        started: Promise[Endpoint] = Promise()
        self._messenger.run_beside(self._place_and_open, request.head, _worker(request), started)
        request.on_cancel(started.set_cancelled)
        answer = partial(self._answer, request, started)
        started.add_done_callback(lambda _: self._messenger.submit(answer))

    def _answer(self, request: Request, started: Promise[Endpoint]) -> None:
        if started.cancelled():
            return
        error = started.exception(0)
        if error is not None:
            request.fail(error)
        elif not request.reply(started.result(0)):
            self._delete(request.head.spec, started.result(0))

    def _open(self, opening: _Opening) -> None:
        """Find a process for a channel, and have it held there as soon as it runs."""
        if opening.started.cancelled():
            return
        node_rank, own = (
            opening.placement.node_rank,
            None if opening.wanted is None else opening.wanted.own_process,
        )
        alone = not self._shares if own is None else own
        seat = self._pool.seat(opening.seat, node_rank, own=alone)
        if seat.is_new:
            process = self._processes[seat.process] = _ChannelProcess(seat.process)
            # Channels need no device. One that has a process for itself finds there what its worker has all the same.
            place = opening.placement if alone else None
            launched: Promise[Supervision] = Promise()
            begin_beside(self._session, lambda: self.launch(place or self._anywhere_on(node_rank)), launched)
            launched.add_done_callback(
                lambda _: self._messenger.submit(lambda: self._on_launched(process, launched))
            )
        process = self._processes[seat.process]
        if process.group is None:
            process.waiting.append(opening)
        else:
            self._hold(opening, process, process.group)

    def _on_launched(self, process: _ChannelProcess, launched: Promise[Supervision]) -> None:
        error = launched.exception(0)
        waiting, process.waiting = process.waiting, []
        if error is not None:
            self._remove(process)
            for opening in waiting:
                _fail(opening, "its process did not start", error)
            return
        process.group = group = launched.result(0)
        if process.number not in self._processes:  # nobody wants it any more
            group.stop_beside()
            return
        gone = group.ranks[0].gone
        gone.add_done_callback(
            lambda _: self._messenger.submit(lambda: self._on_gone(process, gone.result(0)))
        )
        for opening in waiting:
            self._hold(opening, process, group)

    def _hold(self, opening: _Opening, process: _ChannelProcess, group: Supervision) -> None:
        rank = group.ranks[0]
        if opening.started.cancelled() or rank.endpoint is None:
            self._leave(opening.seat)
            return
        if opening.wanted is None:
            opening.started.set_result(rank.endpoint)
            return
        wanted = HoldChannel(opening.wanted.spec, pickle.dumps(opening.placement))
        spec = wanted.spec
        timeout_s = HOLD_TIMEOUT_S
        if spec.durable or spec.restore:
            timeout_s = RECOVER_TIMEOUT_S if spec.durable else RESTORE_TIMEOUT_S
        held = self._messenger.request(
            rank.endpoint, HOLD_CHANNEL, wanted, timeout_s=timeout_s, reply_type=int
        )
        held.add_done_callback(partial(self._on_held, opening, wanted.spec, process, group))

    def _on_held(
        self,
        opening: _Opening,
        spec: ChannelSpec,
        process: _ChannelProcess,
        group: Supervision,
        held: Promise[Reply],
    ) -> None:
        rank, error = group.ranks[0], held.exception(0)
        if isinstance(error, PeerDied):
            self._on_lost(process)
            opening.tries_left -= 1
            if opening.tries_left:
                self._open(opening)
                return
        if rank.endpoint is None or error is not None:
            self._free_seat(spec.channel_id)
            if rank.endpoint is not None and not isinstance(error, (ChannelExists, CheckpointError)):
                self._delete(spec, rank.endpoint)  # it may hold it later
            _fail(opening, "its process does not take it", error)
            return
        self._names[spec.channel_id] = spec.name
        if opening.since is not None:
            after_s = time.monotonic() - opening.since
            restored = ChannelRestored(spec.name, held.result(0).head, str(rank.address), rank.pid, after_s)
            self._session.bus.emit(restored)
        elif spec.durable:
            # Its journal knows from now on what it was restored from.
            begun = msgspec.structs.replace(spec, restore="")
            wanted = opening.wanted and msgspec.structs.replace(opening.wanted, spec=begun)
            self._durable[spec.channel_id] = _Durable(begun, replace(opening, wanted=wanted))
        if opening.since is None and not opening.started.cancelled():
            opened = ChannelOpened(
                spec.name, opening.placement.node_rank, spec.maxsize, str(rank.address), rank.pid
            )
            self._session.bus.emit(opened)
        opening.started.set_result(rank.endpoint)
        if opening.started.cancelled():
            self._delete(spec, rank.endpoint)

    def _on_stopped(self, notice: Request) -> None:
        """A channel was deleted."""
        self._leave(notice.head.channel_id)

    def _leave(self, channel_id: str) -> None:
        self._names.pop(channel_id, None)
        self._durable.pop(channel_id, None)
        self._free_seat(channel_id)

    def _free_seat(self, channel_id: str) -> None:
        number = self._pool.leave(channel_id)
        if number is None:
            return
        retire = partial(self._retire, self._processes[number])
        if self._pool.is_shared(number):
            self._messenger.call_later(WARM_S, retire)
        else:
            retire()

    def _retire(self, process: _ChannelProcess) -> None:
        """End a process that holds nothing, if that is still so."""
        if self._pool.retire(process.number):
            self._remove(process)

    def _on_peer_lost(self, process_id: str) -> None:
        for process in list(self._processes.values()):
            if process.endpoint is not None and process.endpoint.process_id == process_id:
                self._on_lost(process)

    def _on_gone(self, process: _ChannelProcess, reason: str) -> None:
        """It is known why a process is gone."""
        self._on_lost(process)
        if not self._session.closed:
            together = f"; it held {list_names(process.lost)}" if len(process.lost) > 1 else ""
            for name in process.lost:
                self._session.bus.emit(WorkerLost(name, 0, reason + together))

    def _on_lost(self, process: _ChannelProcess) -> None:
        """A process cannot be reached any more: its channels are gone. It is ended, if it still runs."""
        if process.number in self._processes:
            channels = self._pool.lose(process.number)
            lost = (self._names.pop(channel, None) for channel in channels)
            process.lost = [name for name in lost if name is not None]
            self._remove(process)
            for channel in channels:
                if channel in self._durable:
                    self._start_again(self._durable[channel], time.monotonic())

    # -- durable channels ------------------------------------------------------------------------

    def _start_again(self, durable: _Durable, since: float, problem: str = "") -> None:
        """Have a durable channel held by another process on the same node."""
        spec, restarts = durable.spec, durable.restarts
        if self._session.closed or spec.channel_id not in self._durable:
            return
        if not restarts.may(time.monotonic()):
            died = f"its process died {restarts.most} times in {restarts.within_s:.0f} s; its journal is kept"
            reason = f"{died}; {problem}" if problem else died
            del self._durable[spec.channel_id]
            self._session.directory.give_up_async(spec.address, reason)
            # Behind what is said of its death, if that is known.
            self._messenger.submit(partial(self._session.bus.emit, WorkerGivenUp(spec.name, 0, reason)))
            return
        if problem:
            _log.warning("a durable channel does not come back yet: %s", problem)
        again: Promise[Endpoint] = Promise()
        # If that fails, it counts as another time.
        opening = replace(durable.opening, started=again, tries_left=1, since=since)
        again.add_done_callback(
            lambda _: self._messenger.submit(partial(self._on_started_again, durable, opening))
        )
        self._open(opening)

    def _on_started_again(self, durable: _Durable, opening: _Opening) -> None:
        error = opening.started.exception(0)
        if error is not None and opening.since is not None:
            again = partial(self._start_again, durable, opening.since, str(error))
            self._messenger.call_later(AGAIN_S, again)

    def _remove(self, process: _ChannelProcess) -> None:
        self._pool.lose(process.number)
        self._processes.pop(process.number, None)
        if process.group is not None:
            process.group.stop_beside()

    # -- where a channel is to be ----------------------------------------------------------------

    def _check_free(self, name: str) -> None:
        """Raise at once where a name is taken, instead of after the start of a process."""
        if any(entry.name == group_entry(name) for entry in self._session.directory.list(group_entry(name))):
            raise ChannelExists(name, "a group or a channel of this name is there already")

    def _place(self, wanted: StartChannel, asker: WorkerAddress | None) -> Placement:
        """Where a channel is to be; waits for the worker that it is to be beside."""
        self._check_free(wanted.spec.name)
        placement = self._placement_of(wanted, asker)
        # The process that had the name before is gone: a look-up waits for the channel to come.
        self._session.directory.expect(wanted.spec.address)
        return placement

    def _placement_of(self, wanted: StartChannel, asker: WorkerAddress | None) -> Placement:
        channel, group = wanted.spec.name, wanted.group
        rank: Rank | None = wanted.rank
        if wanted.node_rank is not None:
            return self._on_node(channel, wanted.node_rank)
        if asker is not None and group in (None, asker.group):
            group, rank = asker.group, asker.path if rank is None else rank
        if group is None:
            if rank is not None:
                raise ChannelError(
                    channel, "group_rank_affinity needs group_affinity here: the driver has no group"
                )
            return self._anywhere_on(0)
        if isinstance(rank, int):  # as a user gave it
            check_group(self._session, channel, group, rank)
        beside = self._placement_beside(channel, WorkerAddress(group, 0 if rank is None else rank))
        return replace(beside, rank=0, placement_node_rank=0, local_rank=0, local_world_size=1)

    def _on_node(self, channel: str, node_rank: int) -> Placement:
        num_nodes = len(job_topology(self._session).nodes)
        if node_rank >= num_nodes:
            raise ChannelError(channel, f"there are nodes 0 to {num_nodes - 1}, not {node_rank}")
        return self._anywhere_on(node_rank)

    def _anywhere_on(self, node_rank: int) -> Placement:
        return NodePlacementStrategy([node_rank]).get_placement(job_topology(self._session))[0]

    def _placement_beside(self, channel: str, worker: WorkerAddress) -> Placement:
        check_group(self._session, channel, worker.group, worker.path[0])
        try:
            entry = self._session.directory.lookup(str(worker), timeout_s=_AFFINITY_TIMEOUT_S)
        except (PeerNotFound, CommError) as error:
            raise ChannelError(channel, f"cannot be placed beside '{worker}': {error}") from error
        placement = entry.info.get("placement")
        if not isinstance(placement, bytes):
            raise ChannelError(channel, f"cannot be placed beside '{worker}': where it is is not known")
        found: Placement = pickle.loads(placement)
        return found


def _worker(request: Request) -> WorkerAddress | None:
    """The worker that asks; None: it is a driver."""
    return worker_address(request.peer_name)


def _fail(opening: _Opening, problem: str, error: BaseException | None) -> None:
    """End an opening with an error of the channel's, whatever it was that went wrong."""
    if not isinstance(error, (ChannelError, CheckpointError)):
        name = opening.seat if opening.wanted is None else opening.wanted.spec.name
        failure = ChannelError(name, f"{problem}: {error}")
        failure.__cause__ = error
        error = failure
    opening.started.set_exception(error)
