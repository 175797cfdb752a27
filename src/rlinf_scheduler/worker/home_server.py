"""The home of a job that outlives its drivers, as its job server serves it: others' groups, drivers, the job's end."""

from __future__ import annotations

import itertools
import logging
import pickle
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import Buffer, Endpoint, Reply, Request, decode
from rlinf_scheduler.comm.loop import ending
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.config.fleet import Fleet
from rlinf_scheduler.errors import ClusterError, WorkerDied
from rlinf_scheduler.events import Event, JobLost, WorkerLogged, WorkerPrinted
from rlinf_scheduler.host.info import group_entry
from rlinf_scheduler.host.log_lines import left_out_lines
from rlinf_scheduler.host.output import LogFolder
from rlinf_scheduler.rooms import has_room, of_room
from rlinf_scheduler.session import Session
from rlinf_scheduler.wording import did_you_mean, list_names
from rlinf_scheduler.worker.home import free_name, launch_group
from rlinf_scheduler.worker.home_wire import (
    ATTACH,
    DESCRIBE,
    END,
    ENDING,
    EVENT,
    FOLLOW,
    LAUNCH,
    LEAVE,
    NEWS,
    NODES,
    RESIZE,
    RESTART,
    STOP,
    AskNodes,
    Attach,
    EndGroup,
    FollowGroup,
    GroupRecord,
    GroupUpdate,
    JobDescription,
    JobDriver,
    JobGroup,
    JobWelcome,
    LaunchGroup,
    NodesKnown,
    RankUpdate,
    ResizeGroup,
    RestartRank,
    StopJob,
)
from rlinf_scheduler.worker.moves import Moves
from rlinf_scheduler.worker.node_watch import NodeWatch
from rlinf_scheduler.worker.order import GroupOrder, Growth, Shrinkage
from rlinf_scheduler.worker.supervision import Supervision, groups_of, stop_groups

# So much a driver is sent that it has not taken: it may be stopped. Lines of workers have half of it.
MAX_UNTAKEN_BYTES = 32 << 20
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class ServedGroup:
    """A group of the job server's.

    Attributes:
        number: no other one has it.
        supervision: its processes.
        class_frames: the worker's class, encoded.
        owner: the process with which it ends; "" for none.
        owner_name: how that is called.
        followers: the processes that are told of it.
    """

    number: int
    supervision: Supervision
    class_frames: list[Buffer]
    owner: str = ""
    owner_name: str = ""
    followers: set[str] = field(default_factory=set)

    def record(self) -> GroupRecord:
        """It, for those that call it; on the I/O thread."""
        group = self.supervision
        ranks = [self.update_of(number) for number in group.ranks]
        on_failure: Any = group.on_failure  # no function: who launches by others has none
        return GroupRecord(self.number, group.members, on_failure, group.stall_after_s, ranks)

    def update_of(self, number: int) -> RankUpdate:
        """How a rank is; on the I/O thread."""
        rank = self.supervision.ranks[number]
        state, reason = self.supervision.state_of(number)
        gone = rank.gone.result(0) if rank.gone.done() else ""
        placement = pickle.dumps(rank.placement)
        return RankUpdate(number, state, reason, gone, rank.endpoint, rank.pid, rank.num_restarts, placement)


class GroupServer:
    """Launches and ends groups for the processes of a detached job; a service of the job server. On the I/O thread.

    Args:
        session: of the job server.

    Attributes:
        groups: those that have not ended, by number.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._messenger = session.messenger
        self._moves = session.service(Moves)
        self.groups: dict[int, ServedGroup] = {}
        self._next_number = itertools.count(1).__next__
        # By name: who wants it launched, and is told of what it prints meanwhile.
        self._launching: dict[str, Request] = {}
        self._messenger.serve(LAUNCH, self._on_launch, LaunchGroup)
        self._messenger.serve(FOLLOW, self._on_follow, FollowGroup)
        self._messenger.serve(END, self._on_end, EndGroup)
        self._messenger.serve(RESTART, self._on_restart, RestartRank)
        self._messenger.serve(RESIZE, self._on_resize, ResizeGroup)
        self._messenger.on_peer_lost(self._on_peer_lost)

    def listeners(self, name: str) -> set[str]:
        """The processes that are told what a group prints; from any thread."""
        launch = self._launching.get(name)
        found = {launch.peer_id} if launch is not None else set()
        for group in list(self.groups.values()):
            if group.supervision.name == name:
                found.update(group.followers)
        return found

    def end_groups_of(self, process_id: str) -> None:
        """End the groups that stay only as long as a process does; a thread's own work, waits until they have ended."""
        groups = [group for group in list(self.groups.values()) if group.owner == process_id]
        stop_groups([group.supervision for group in groups], "the end of its driver")

    # -- the I/O thread --------------------------------------------------------------------------

    def _on_launch(self, request: Request) -> None:
        wanted: LaunchGroup = request.head
        given_up: Promise[None] = Promise()
        request.on_cancel(lambda: given_up.set_result(None))
        # Here, as long as no later word of that process is read: it may give up, and take the name once more.
        taken = self._session.directory.take_over_async(group_entry(wanted.name), request.peer_id)
        taken.add_done_callback(partial(self._on_taken, request, given_up))

    def _on_taken(self, request: Request, given_up: Promise[None], taken: Promise[Reply]) -> None:
        """The name of a group that a process wants launched is this process's from now on, or was not that one's."""
        wanted: LaunchGroup = request.head
        error = taken.exception(0)
        if error is not None:
            request.fail(error)
        elif not taken.result(0).head:
            problem = f"group '{wanted.name}' is to be launched by a process that has not taken its name"
            request.fail(ClusterError(problem))
        else:
            self._launching[wanted.name] = request
            self._messenger.run_beside(self._launch, request, given_up)

    def _on_launched(self, request: Request, group: Supervision) -> None:
        wanted: LaunchGroup = request.head
        self._launching.pop(wanted.name, None)
        class_frames = request.frames[1 : 1 + wanted.num_class_frames]
        served = ServedGroup(self._next_number(), group, class_frames)
        self.groups[served.number] = served
        group.on_change.append(partial(self._on_change, served))
        if not wanted.detached:
            served.owner, served.owner_name = request.peer_id, request.peer_name
        served.followers.add(request.peer_id)
        if not request.reply(
            served.record(), on_confirmed=partial(self._on_confirmed, served, request.peer_id)
        ):
            group.stop_beside()  # its launch was given up

    def _on_confirmed(self, served: ServedGroup, launcher: str, taken: bool) -> None:
        # Who is lost may have had it: what has an owner ends with that, what has none stays.
        if not taken and launcher not in self._messenger.peers.lost:
            served.supervision.stop_beside()

    def _on_failed(self, request: Request) -> None:
        name = request.head.name
        if self._launching.get(name) is request:  # the name is free: another launch may have it by now
            del self._launching[name]

    def _on_change(self, served: ServedGroup, rank: int | None) -> None:
        group = served.supervision
        has_ended = group.ended.done()
        if rank is not None:
            news = GroupUpdate(served.number, served.update_of(rank))
        elif group.stopping:
            news = GroupUpdate(served.number, None, has_ended)
        else:
            news = GroupUpdate(served.number, None, members=group.members, why=group.why_resized)
        for process_id in served.followers:
            self._messenger.notify(_known(process_id), NEWS, news)
        if has_ended and self.groups.pop(served.number, None) is not None:
            self._messenger.run_beside(self._give_back, served)

    def _on_follow(self, request: Request) -> None:
        wanted: FollowGroup = request.head
        there = {
            served.supervision.name: served
            for served in self.groups.values()
            if not served.supervision.stopping
        }
        if wanted.name in self._launching:
            raise ClusterError(
                f"group '{wanted.name}' is being launched: it can be attached to when that is done"
            )
        if wanted.name not in there:
            raise _no_such_group(wanted.name, sorted(there))
        served = there[wanted.name]
        served.followers.add(request.peer_id)
        request.reply(served.record(), served.class_frames)

    def _on_end(self, request: Request) -> None:
        wanted: EndGroup = request.head
        served = self.groups.get(wanted.number)
        if served is None:  # it has ended
            request.reply(None)
        elif wanted.finishes:
            self._answer_beside(request, partial(served.supervision.shutdown, wanted.timeout_s))
        else:
            self._answer_beside(request, served.supervision.stop)

    def _on_restart(self, request: Request) -> None:
        wanted: RestartRank = request.head
        served = self.groups.get(wanted.number)
        if served is None:
            raise WorkerDied(f"group {wanted.number}", wanted.rank, "", "the group was terminated")
        self._answer_beside(request, partial(served.supervision.restart, wanted.rank, wanted.timeout_s))

    def _on_resize(self, request: Request) -> None:
        served = self.groups.get(request.head.number)
        if served is None:
            raise WorkerDied(f"group {request.head.number}", 0, "", "the group was terminated")
        given_up: Promise[None] = Promise()
        request.on_cancel(lambda: given_up.set_result(None))
        self._messenger.run_beside(_resize, request, served.supervision, given_up)

    def _on_peer_lost(self, process_id: str) -> None:
        for served in self.groups.values():
            served.followers.discard(process_id)
        if any(served.owner == process_id for served in self.groups.values()):
            self._messenger.run_beside(self.end_groups_of, process_id)

    def _answer_beside(self, request: Request, work: Callable[[], None]) -> None:
        self._messenger.run_beside(_answer, request, work)

    # -- threads of their own --------------------------------------------------------------------

    def _launch(self, request: Request, given_up: Promise[None]) -> None:
        wanted: LaunchGroup = request.head
        name = wanted.name
        try:
            order: GroupOrder = pickle.loads(request.frames[0])
            order = replace(order, factory=tuple(request.frames[1 + wanted.num_class_frames :]))
            group = launch_group(self._session, order, name, given_up)
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            free_name(self._session, name)
            self._messenger.submit(partial(self._on_failed, request))
            request.fail(error)
        else:
            self._messenger.submit(ending(partial(self._on_launched, request, group), request.fail))

    def _give_back(self, served: ServedGroup) -> None:
        """The job may go on for long without this group: others are to have its devices."""
        self._moves.forget(served.supervision.name)
        if served.supervision.give_back is not None:
            served.supervision.give_back()


def _answer(request: Request, work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - it belongs to the caller
        request.fail(error)
    else:
        request.reply(None)


def _resize(request: Request, group: Supervision, given_up: Promise[None]) -> None:
    try:
        wanted: Growth | Shrinkage = decode(request.frames[0], request.frames[1:])
        resize: Callable[..., tuple[int, ...]] = group.grow if isinstance(wanted, Growth) else group.shrink
        numbers = resize(wanted, given_up)
    except BaseException as error:  # noqa: BLE001 - it belongs to the caller
        request.fail(error)
    else:
        request.reply(numbers)


def _known(process_id: str) -> Endpoint:
    """A process that is connected."""
    return Endpoint(process_id, "", "", "")


def _no_such_group(name: str, there: Sequence[str]) -> ClusterError:
    """That the job server has no group of that name, and which it has."""
    listed = f"there are {list_names(there)}" if there else "it has none"
    hint = did_you_mean(name, there)
    return ClusterError("; ".join(filter(None, [f"no group '{name}' in this job: {listed}", hint])))


@dataclass(slots=True, eq=False)
class _Driver:
    """A driver, and what it has not taken; and how many lines it was not sent for that, by group and rank."""

    about: JobDriver
    untaken_bytes: int = 0
    num_left_out: Counter[tuple[str, int]] = field(default_factory=Counter)


class DriverServer:
    """The drivers of a detached job; a service of its job server. On the I/O thread.

    Args:
        session: of the job server.
        refresh: probes the nodes anew, within so many seconds.
    """

    def __init__(self, session: Session, *, refresh: Callable[[Session, float], object]) -> None:
        self._session = session
        self._messenger = session.messenger
        self._refresh = refresh
        self._groups = session.service(GroupServer)
        if has_room("tracing"):
            session.service(of_room("tracing.detached:TraceMaker"))
        self._drivers: dict[str, _Driver] = {}
        self._why_ending = ""
        self._messenger.serve(ATTACH, self._on_attach, Attach)
        self._messenger.serve(LEAVE, self._on_leave, None)
        self._messenger.serve(DESCRIBE, self._on_describe, None)
        self._messenger.serve(NODES, self._on_ask_nodes, AskNodes)
        self._messenger.serve(STOP, self._on_stop, StopJob)
        self._messenger.on_peer_lost(self._on_peer_lost)
        session.bus.subscribe(self._tell)
        session.on_close_first(lambda: self._say_ending(session.failure or "its job server has left it"))

    def _say_ending(self, why: str) -> None:
        """Tell all drivers, before they see what ends with the job; from any thread."""
        if not self._why_ending:
            self._why_ending = why
            for process_id in list(self._drivers):
                self._messenger.notify(_known(process_id), ENDING, why)

    def _on_attach(self, request: Request) -> None:
        if self._why_ending:
            raise ClusterError(f"the job ends: {self._why_ending}")
        wanted: Attach = request.head
        about = JobDriver(wanted.host, wanted.pid, wanted.program, time.time())
        self._drivers[request.peer_id] = _Driver(about)
        facts = JobWelcome(_fleet(self._session), self._session.fact(LogFolder) or LogFolder(""))
        _log.info("'%s' takes part: %s", request.peer_name, wanted.program)
        request.reply(None, [pickle.dumps(facts)])

    def _on_leave(self, request: Request) -> None:
        self._messenger.run_beside(self._end_with, request)

    def _on_peer_lost(self, process_id: str) -> None:
        driver = self._drivers.pop(process_id, None)
        if driver is not None:
            _log.info("driver %d on %s is gone", driver.about.pid, driver.about.host)

    def _on_describe(self, request: Request) -> None:
        groups = [
            JobGroup(
                served.supervision.name,
                served.supervision.members.world_size,
                served.owner and served.owner_name,
            )
            for served in self._groups.groups.values()
        ]
        drivers = [driver.about for driver in self._drivers.values()]
        request.reply(JobDescription(drivers, sorted(groups, key=lambda group: group.name)))

    def _on_ask_nodes(self, request: Request) -> None:
        self._messenger.run_beside(self._say_nodes, request)

    def _on_stop(self, request: Request) -> None:
        self._messenger.run_beside(self._stop, request)

    # -- threads of their own --------------------------------------------------------------------

    def _end_with(self, request: Request) -> None:
        self._groups.end_groups_of(request.peer_id)
        request.reply(None)

    def _say_nodes(self, request: Request) -> None:
        wanted: AskNodes = request.head
        try:
            if wanted.refresh_s is not None:
                self._refresh(self._session, wanted.refresh_s)
            fleet = _fleet(self._session)
            lost = dict(self._session.service(NodeWatch).states.lost)
            known = NodesKnown(fleet, lost)
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            request.fail(error)
        else:
            request.reply(None, [pickle.dumps(known)])

    def _stop(self, request: Request) -> None:
        wanted: StopJob = request.head
        why = f"the job was stopped by {wanted.who}"
        self._say_ending(why)
        stop_groups(list(groups_of(self._session)), f"stop_job() of {wanted.who}")

        def close(_: bool) -> None:
            self._messenger.run_beside(self._session.close, why)

        if not request.reply(None, on_confirmed=close):
            self._session.close(why)

    # -- the bus's thread ------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        if isinstance(
            event, JobLost
        ):  # of the job server itself: drivers hear that the job ends, and lose it then
            return
        listeners = (
            self._groups.listeners(event.group) if isinstance(event, (WorkerLogged, WorkerPrinted)) else None
        )
        drivers = list(self._drivers.items())
        chosen = [
            (process_id, driver)
            for process_id, driver in drivers
            if listeners is None or process_id in listeners
        ]
        if not chosen:
            return
        frame = pickle.dumps(event)
        for process_id, driver in chosen:
            self._messenger.submit(partial(self._send, process_id, driver, event, frame))

    # -- the I/O thread --------------------------------------------------------------------------

    def _send(self, process_id: str, driver: _Driver, event: Event, frame: bytes) -> None:
        """Send an event to a driver, or count its lines."""
        if process_id not in self._drivers or driver.untaken_bytes > MAX_UNTAKEN_BYTES:
            return
        if isinstance(event, (WorkerPrinted, WorkerLogged)) and (
            driver.num_left_out or driver.untaken_bytes > MAX_UNTAKEN_BYTES // 2
        ):
            driver.num_left_out[event.group, event.rank] += _num_lines(event)
            return
        driver.untaken_bytes += len(frame)

        def taken(_: Promise[Reply]) -> None:
            driver.untaken_bytes -= len(frame)
            if driver.num_left_out and driver.untaken_bytes < MAX_UNTAKEN_BYTES // 4:
                self._tell_left_out(process_id, driver)

        self._messenger.request(_known(process_id), EVENT, None, [frame], reply_type=None).add_done_callback(
            taken
        )

    def _tell_left_out(self, process_id: str, driver: _Driver) -> None:
        left_out, driver.num_left_out = driver.num_left_out, Counter()
        folder = self._session.fact(LogFolder) or LogFolder("")
        for rank, number in left_out.items():
            event = left_out_lines(rank, number, folder.file_of(WorkerAddress(*rank)))
            self._send(process_id, driver, event, pickle.dumps(event))


def _num_lines(event: WorkerPrinted | WorkerLogged) -> int:
    return len(event.lines) if isinstance(event, WorkerPrinted) else 1


def _fleet(session: Session) -> Fleet:
    fleet = session.fact(Fleet)
    if fleet is None:
        raise ClusterError(f"'{session.name}' knows of no nodes")
    return fleet
