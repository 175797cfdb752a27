"""`Cluster`: what users open first; every process of a job sees the same one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from rlinf_scheduler.channel import (
    SAVE_TIMEOUT_S,
    Channel,
    ChannelSpec,
    Checkpoint,
    Lease,
    channels_of,
)
from rlinf_scheduler.checks import checked_seconds, explains_arguments, explains_calls, whole_number
from rlinf_scheduler.comm import on_fork_in_child
from rlinf_scheduler.config import ClusterConfig, read_cluster_config
from rlinf_scheduler.config.fleet import Fleet
from rlinf_scheduler.config.nodes import check_one_number
from rlinf_scheduler.errors import ClusterError, ConfigError, raise_config_errors
from rlinf_scheduler.events import Listener
from rlinf_scheduler.extension import load_extension
from rlinf_scheduler.face.finder import is_wanted as runs_rlinf
from rlinf_scheduler.hardware.filling_in import fill_in_groups
from rlinf_scheduler.hardware.registry import hardware_variables
from rlinf_scheduler.host.info import (
    DetachedJob,
    JobSettings,
    Role,
    job_settings,
    job_topology,
    keeps_elsewhere,
)
from rlinf_scheduler.host.output import LogFolder
from rlinf_scheduler.observe.job_trace import MAX_BYTES as TRACE_BYTES
from rlinf_scheduler.observe.job_trace import JobTrace
from rlinf_scheduler.observe.report import WITHIN_S as REPORT_S
from rlinf_scheduler.observe.report import Report, ask_report
from rlinf_scheduler.observe.status import JobStatus
from rlinf_scheduler.observe.status_service import begin_status, received
from rlinf_scheduler.observe.why import WITHIN_S, Why, why
from rlinf_scheduler.opening import check_node_count, open_session, refresh_nodes, session_with_ray
from rlinf_scheduler.placement import ComponentPlacement
from rlinf_scheduler.planning import ScalingOptions, Topology
from rlinf_scheduler.planning.scaling import ScalingPolicy
from rlinf_scheduler.rooms import of_room
from rlinf_scheduler.scaling.autoscale import Autoscale
from rlinf_scheduler.scaling.launched import launched_group
from rlinf_scheduler.scaling.lending import Loan
from rlinf_scheduler.session import Session, SideBySide
from rlinf_scheduler.session.session import why_left
from rlinf_scheduler.weights import AllWeights, published_weights
from rlinf_scheduler.wording import counted
from rlinf_scheduler.worker.group import WorkerGroup
from rlinf_scheduler.worker.group_calls import FailFast
from rlinf_scheduler.worker.node_watch import NodeWatch
from rlinf_scheduler.worker.supervision import GroupEntry, groups_in

if TYPE_CHECKING:
    from rlinf_scheduler.config.metrics import Reduction

_NOT_ELASTIC = (
    "groups are not made elastic by RLinf's rules; cluster.autoscale() grows and shrinks them by ours"
)
_FIXED_SIZES = "auto_scheduler: false keeps the sizes of component_placement"
SIMULATE_VARIABLE = "RLINF_SIMULATE"
# Beyond that it does not fit where it is shown.
_MAX_JOB_NAME = 100
T = TypeVar("T")
# Held while one thread opens this process's cluster, each step of which has a deadline: the others wait for it, to have
# a view of that.
_opening = threading.RLock()


@explains_calls
class Cluster:
    """The nodes and accelerators that a job runs on.

    The first `Cluster(...)` of a driver starts or joins Ray; any later one in that process, and `Cluster()` in a
    worker, is a view of the same cluster. It is a context manager; leaving it, or the end of the
    process, takes down what was started here. Of threads that make one at once the first opens it for all.

    Args:
        cluster_cfg: the `cluster` section of a config, or a config that has one: dict, DictConfig or path.
        num_nodes: how many nodes there must be; the config's `num_nodes` when None.
        simulate: instead of a real cluster, start Ray nodes with pretend accelerators on this machine: "2x8" is two
            nodes of eight; a `Topology` may have masks. Else the config's `simulate`, else the variable RLINF_SIMULATE.
        address: a Ray address to join; else Ray's own rule (RAY_ADDRESS, a Ray that runs on this machine, a new one).
        start_timeout_s: how long to wait for a Ray that answers, for its nodes and for what they say, in seconds;
            where one is started, how long each of its nodes may take.
        job: take part in the job of this name, which outlives its drivers; close() only leaves it then.
        detached: begin that job where it does not run yet; what the config says of a job is for who begins it.
        log_folder: where each rank has files of what it prints and logs, the same path on every node; "": a folder of
            the job's own among those of the last jobs. It counts for the one that opens the cluster, or begins the job.

    Raises:
        ConfigError: the section or an argument has a mistake, or asks for what this process's cluster is not.
        PlacementError: nodes are simulated, and a component of the section has no place on them.
        ClusterTimeout: too few nodes at the deadline; the text lists those that are there.
        ClusterError: Ray cannot be started or joined, or no job of that name runs there.

        with Cluster(simulate="1x2") as cluster:
            cluster.num_nodes, cluster.num_accelerators      # (1, 2)
    """

    @explains_arguments
    def __init__(
        self,
        cluster_cfg: Any = None,
        num_nodes: int | None = None,
        *,
        simulate: str | Topology | None = None,
        address: str | None = None,
        start_timeout_s: float = 120,
        job: str | None = None,
        detached: bool = False,
        log_folder: str | os.PathLike[str] = "",
    ) -> None:
        load_extension()
        start_timeout_s = checked_seconds("start_timeout_s", start_timeout_s)
        config = read_cluster_config(cluster_cfg) if cluster_cfg is not None else None
        if config is not None and config.auto_scheduler:
            raise ConfigError(_NOT_ELASTIC, path="cluster.auto_scheduler", hint=_FIXED_SIZES)
        wanted_nodes = _wanted_nodes(num_nodes, config)
        _check_job_options(job, simulate or (config and config.simulate), detached=detached)
        log_folder = os.path.abspath(log_folder) if log_folder else ""
        with _opening:
            existing = session_with_ray()
            shape = None if job else _simulated_shape(simulate, config, opening=existing is None)
            self._owner = existing is None
            if existing is None and job:
                begins = config or ClusterConfig() if detached else None
                existing = _detached().take_part(
                    job, begins, wanted_nodes, address, start_timeout_s, log_folder
                )
            elif existing is None:
                if shape is not None:
                    # Its mistakes are found before Ray is started, whose simulated nodes begin with these variables.
                    _check_config(_with_own_variables(shape), config)
                existing = open_session(
                    shape,
                    wanted_nodes,
                    address,
                    start_timeout_s,
                    config or ClusterConfig(),
                    log_folder,
                )
            elif shape is not None:
                _check_shape(job_topology(existing), shape)
            elif job:
                _check_is_job(existing, job)
        self._session = existing
        try:
            topology = job_topology(existing)
            check_node_count(topology, wanted_nodes)
            if config is not None:
                self._provide_settings(config, topology)
            self._topology = (
                _with_groups(topology, config)
                if config is not None and config.node_groups
                else topology.with_node_groups(job_settings(existing).node_groups)
            )
        except BaseException:
            self.close()
            raise

    def _provide_settings(self, config: ClusterConfig, topology: Topology) -> None:
        session = self._session
        # RLinf's programs leave results alone, and count on that.
        fail_fast = runs_rlinf() if config.fail_fast is None else config.fail_fast
        if fail_fast and session.fact(Role) is None:
            session.provide(FailFast, FailFast(session))
        if self._owner:
            groups = _with_groups(topology, config).node_groups
            session.provide(JobSettings, replace(job_settings(session), node_groups=groups))

    @property
    def session(self) -> Session:
        """This process's membership in the job.

        Raises:
            ClusterError: the cluster was closed.
        """
        if self._session.closed:
            raise ClusterError(self._session.failure or "this cluster was closed")
        return self._session

    @property
    def topology(self) -> Topology:
        """The nodes in rank order, with the node groups of the config that this view was opened with.

        In the driver it is that of now: nodes that have come, with `cluster.nodes`, are there.
        """
        there = self._session.fact(Topology) if not keeps_elsewhere(self._session) else None
        if there is not None and there.nodes is not self._topology.nodes:
            self._topology = replace(self._topology, nodes=there.nodes)
        return self._topology

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return len(self.topology.nodes)

    @property
    def num_accelerators(self) -> int:
        """How many accelerators there are on all nodes together."""
        return self.topology.num_accelerators

    @property
    def fleet(self) -> Fleet:
        """What each node said about itself when it was probed: devices, memory, interpreter, interfaces.

        Raises:
            ClusterError: this process is a worker; the driver has it.
        """
        fleet = self.session.fact(Fleet)
        if fleet is None:
            raise ClusterError("only the driver keeps what the nodes said about themselves")
        return fleet

    @property
    def groups(self) -> dict[str, GroupEntry]:
        """The worker groups of the job, of every launcher, by name; one that is being launched too."""
        return groups_in(self.session)

    @property
    def channels(self) -> dict[str, ChannelSpec]:
        """The channels of the job, of every creator, by name."""
        return channels_of(self.session)

    @property
    def weights(self) -> AllWeights:
        """The weights that living processes publish, with their present versions, by name."""
        return published_weights(self.session)

    @property
    def log_folder(self) -> str:
        """Where each rank has a file of what it printed and logged, on its own node; "" where Ray has all of it."""
        folder = self.session.fact(LogFolder)
        return folder.path if folder is not None else ""

    def starting(self) -> AbstractContextManager[None]:
        """A block in which groups and channels start side by side; at its end all of them are ready.

        `launch` and `Channel.create` return at once in it, and what is done with a group or a channel that is not ready
        yet waits until it is.

        Raises:
            LaunchError: at the end of the block, if a launch failed; the block's other groups are ended then, its
                channels are not.
            ChannelError: at the end of the block, if a channel could not be had; likewise.

            with cluster.starting():
                actor = Actor.create_group().launch(cluster, name="actor")
                rollout = Rollout.create_group().launch(cluster, name="rollout")
        """
        return self.session.service(SideBySide).together()

    @property
    def lost_nodes(self) -> dict[int, str]:
        """The nodes that are gone, by rank, each with why and since when; the driver knows.

        They keep their ranks in `topology`; nothing can be launched on them.
        """
        if keeps_elsewhere(self.session):
            lost: dict[int, str] = _detached().nodes_of(self.session).lost
            return lost
        return dict(self.session.service(NodeWatch).states.lost)

    def refresh(self, timeout_s: float = 120) -> Topology:
        """Ask Ray anew which nodes there are; gives the topology of now.

        Nodes that have joined come last, or take the place of one that is gone if they were started with its
        `RLINF_NODE_RANK`. All others keep their ranks. Workers that run keep the topology that they started with.

        Args:
            timeout_s: how long the nodes may take to answer, in seconds.

        Raises:
            ClusterTimeout: a node does not answer.
            ClusterError: this process is a worker; or a node that joined is another machine, and the job uses one.
        """
        if keeps_elsewhere(self.session):
            topology = _detached().nodes_of(self.session, refresh_s=timeout_s).fleet.topology
        else:
            topology = refresh_nodes(self.session, timeout_s)
        self._topology = replace(self._topology, nodes=topology.nodes)
        return self._topology

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        channels: Iterable[Channel] = (),
        extra: Any = None,
        acknowledge: Lease | Iterable[Lease] = (),
        timeout_s: float | None = SAVE_TIMEOUT_S,
    ) -> None:
        """Save channels and a state of the caller's in one cut, while everybody goes on; `Cluster.load` reads it.

        Everything that was in one of the channels is in the checkpoint, or what was made of it and put into another
        one, or both. What was acknowledged before, or is in `acknowledge`, is not. So who leases, trains, and saves its
        step with the lease in `acknowledge`, or after its block, trains on no item twice and on each one, whenever the
        whole job is killed:

            with tasks.lease() as lease:
                step = train(lease.item)
                cluster.save("checkpoint", channels=[tasks], extra={"step": step}, acknowledge=lease)

        Nobody ever sees a checkpoint that is not whole: the one before stays until then, and goes then.

        Args:
            path: a folder, which is made. Each channel's process writes a file into it; where they run on several
                nodes, all of them see it.
            channels: the channels.
            extra: anything that can be pickled: a step, a position in the data, weights.
            acknowledge: leases of this process that are done with in the checkpoint; they are acknowledged once it is
                there.
            timeout_s: how long each channel may take, in seconds; None: as long as it takes.

        Raises:
            CheckpointError: it cannot be written, or somebody else writes there now; or more than 1 GiB, and more than
                `max_bytes`, was put into a channel while others were slow to begin. The one before is there as it was.
            CodecError: `extra` cannot be pickled.
            LeaseExpired: a lease to be acknowledged is over; then there is no new checkpoint, or there is one in which
                its items are done with.
            ChannelUnanswered: a channel took longer.
        """
        self.session.messenger.check_process()
        of_room("durable.saving:save_job")(path, channels, extra, acknowledge, timeout_s)

    @staticmethod
    def load(path: str | os.PathLike[str], *, missing_ok: bool = False) -> Checkpoint:
        """Read what `save` has written: `.extra`, and what to restore channels from.

            saved = Cluster.load("checkpoint", missing_ok=True)
            tasks = Channel.create("tasks", restore=saved)        # empty the first time
            step = saved.extra["step"] if saved else 0

        It unpickles `extra`, which may run anything: load what you have saved.

        Args:
            path: the folder.
            missing_ok: return a checkpoint that is false, and has nothing in it, where there is none.

        Raises:
            CheckpointError: there is none; or it is corrupt, cut off, no checkpoint, or of a newer version.
        """
        checkpoint: Checkpoint = of_room("durable.checkpoint_files:load_job")(path, missing_ok=missing_ok)
        return checkpoint

    @overload
    def attach(self, name: str) -> WorkerGroup[Any]: ...

    @overload
    def attach(self, name: str, worker_class: type[T]) -> WorkerGroup[T]: ...

    def attach(self, name: str, worker_class: type[Any] | None = None) -> WorkerGroup[Any]:
        """A group of a job that outlives its drivers, of any launcher.

            policy = cluster.attach("policy")

        Args:
            name: the group's.
            worker_class: the class of its workers; None: as it was launched, imported from the same module.

        Raises:
            ClusterError: there is no such group, its class cannot be imported here, or the job ends with its driver.
        """
        if not keeps_elsewhere(self.session):
            problem = f"attach({name!r}): only groups of a job that outlives its drivers can be attached to"
            raise ClusterError(f"{problem}; Cluster(job=NAME, detached=True) opens one")
        group: WorkerGroup[Any] = _detached().attach(self.session, name, worker_class)
        return group

    def stop_job(self) -> None:
        """End all of a job that outlives its drivers: its groups, its channels, and the parts of all drivers in it.

        Raises:
            ClusterError: this job ends with its driver, or this process is none.
        """
        if not keeps_elsewhere(self.session):
            raise ClusterError("stop_job() is for drivers of a job that outlives them; close() ends this one")
        _detached().end_job(self.session)

    def why(self, within_s: float = WITHIN_S) -> Why:
        """Who waits for whom, for how long and why, the most probable culprit first, with the stacks of who waits.

        Every process answers from its I/O thread, also if its main thread is blocked; one that does not is looked at
        from outside, and has to write its stacks if it is silent for five seconds. It moves no item, and stops nobody
        who answers.

            print(cluster.why())

        Args:
            within_s: how long the processes may take to answer, in seconds.

        Raises:
            ClusterError: the job's driver does not answer.
        """
        return why(self.session, within_s)

    def report(self, step: str | None = None, within_s: float = REPORT_S) -> Report:
        """Where the time of all ranks went: phases (`Worker.timer`), waits by what ended them, and what steps wait for.

        It is counted since each rank's first call, in every run. Ranks that have ended are part of it, but for those
        that were killed, which it names.

            print(cluster.report(step="actor.update"))

        Args:
            step: the method with which each step of the job ends, as "group.method"; None: of the methods that were
                called more than once, the one that takes most of its group's time.
            within_s: how long the processes may take to answer, in seconds.

        Raises:
            ConfigError: no method was called that `step` names.
            ClusterError: the job's driver does not answer.
        """
        return ask_report(self.session, step, within_s)

    def trace(self, path: str | os.PathLike[str], *, max_bytes: int = TRACE_BYTES) -> JobTrace:
        """Write a timeline of all processes: calls, phases, items from put to get, weights, waits, events.

        It begins at once, for ranks that come later too. It ends with the block, `JobTrace.stop`, the job, or when this
        driver leaves a job that outlives it; then what all of them noted is fetched and written. A rank that was killed
        is in it to its last moment. The file is JSON that https://ui.perfetto.dev opens, and Chrome; one that is called
        `.jsonl` has an event a line. With RLINF_TRACE=file in the driver's environment, or `tracer` in the config, the
        whole job is traced so; one that outlives its drivers, for as long as this driver takes part.

            with cluster.trace("run.perfetto"):
                train(cluster)

        Args:
            path: of the file, which is made or replaced; compressed if it ends with ".gz".
            max_bytes: how large it may become, uncompressed, and what all processes of a machine have written for it
                meanwhile, those that have ended too; the oldest spans are left out, and counted.

        Raises:
            ConfigError: the job is traced already; this process is no driver; or `max_bytes` is less than a megabyte.
            CommError: the job server of a job that outlives its drivers does not answer.
            OSError: the file cannot be written.
        """
        session = self.session
        begun: JobTrace
        if session.home.process_id != session.messenger.endpoint.process_id:
            if keeps_elsewhere(session):
                begun = _detached().trace(session, path, max_bytes)
                return begun
            raise ConfigError("only the driver traces a job; a rank's own times are in its trace")
        begun = session.service(of_room("tracing.service:TraceService")).begin(path, max_bytes)
        return begun

    def status(self) -> JobStatus:
        """What the job does: its nodes, ranks, channels, weights and last events, with rates, as data.

        Every process answers from its I/O thread, in well under a millisecond and without moving an item. Who asks
        within a second of somebody else gets the same answer.

            for rank in cluster.status().ranks:
                print(rank.address, rank.state, rank.method, rank.cpu_percent)

        Raises:
            ClusterError: the job's driver does not answer.
        """
        return received(begin_status(self.session))

    def autoscale(
        self,
        group: WorkerGroup[Any] | str,
        *,
        min: int,
        max: int,
        by: str = "queue_wait",
        options: ScalingOptions | None = None,
        dry_run: bool = False,
        on_grow: Callable[[WorkerGroup[Any]], object] | None = None,
    ) -> Autoscale:
        """Have a group grow while it is waited for, and shrink while it is not; until `stop()`, or the job ends.

        It goes by what `report()` knows. What it decides, and why, is in `decisions` of what it returns, and told by
        the event `Autoscaled`. It takes free devices only: where there are none, it stays as it is, and says who has
        them.

            policy = cluster.autoscale("rollout", min=2, max=8, by="queue_wait")

        Args:
            group: the group, or its name; of a job that outlives its drivers each group of the job.
            min, max: how many ranks it has.
            by: "queue_wait": the share of their time that others wait for items that it puts, or answers it gives, in
                channels. "result_wait": that they wait for results of calls of it.
            options: when it grows and shrinks, and how.
            dry_run: nothing is changed; what would be is told.
            on_grow: called with a view of the ranks that have come, to have them begin: `lambda new: new.serve()`.

        Raises:
            ConfigError: an argument is not what is said above, or the group has a policy already.
            PlacementError: this is a view of some of its ranks.
            ClusterError: the job has no group of that name, another process resizes it, or it has ended.
        """
        policy = ScalingPolicy(min, max, ScalingOptions() if options is None else options)
        workers = launched_group(self.session, group, is_called=on_grow is not None)
        return Autoscale(self.session, workers, policy, by=by, dry_run=bool(dry_run), on_grow=on_grow)

    def lend(
        self,
        lender: WorkerGroup[Any] | str,
        *,
        to: WorkerGroup[Any] | str,
        num_workers: int | None = None,
        drain_s: float = 30.0,
    ) -> Loan:
        """Let a group have further ranks on the devices of another one, between two phases, say.

        `loan.plan()` says before which devices, which weights, and how much memory. The lender's memory is left by its
        own `device_lock(offload=...)`.

            with cluster.lend("actor", to="rollout", num_workers=2) as loan:
                collect(loan.ranks)

        Args:
            lender: whose devices these are: a group, or its name.
            to: the group that grows; each of its further ranks has as many devices as one has now.
            num_workers: how many further ranks; None: as many as there are devices for.
            drain_s: how long these may take to finish at the end, in seconds.

        Raises:
            PlacementError: the lender has no devices for so many, or one is a view of some ranks of a group.
            ClusterError: the job has no group of that name, another process resizes it, or it has ended.
            ConfigError: an argument is not what is said above.
        """
        if num_workers is not None and whole_number(num_workers, lowest=1) is None:
            raise ConfigError(f"num_workers={num_workers!r}: it is a whole number from 1")
        groups = launched_group(self.session, lender), launched_group(self.session, to)
        limit_s = checked_seconds("drain_s", drain_s)
        return Loan(self.session, *groups, num_workers, lambda: self.topology, limit_s)

    def log_metrics(
        self, metrics: Mapping[str, Any], step: int | None = None, *, reduce: Reduction | None = None
    ) -> None:
        """Log numbers of a training step, as `Worker.log_metrics` does in a rank; their names stay as they are.

        Raises:
            ConfigError: as there.
        """
        log = of_room("metrics.sending:log_metrics")
        log(self.session, "", self.session.name, 1, (metrics, step, reduce))

    @property
    def web_url(self) -> str:
        """Where a browser on this machine sees the job live; the page is served from when this is first asked for.

        It is served by this process, as long as that has the cluster. It listens on the loopback address alone, and
        only who has this address is let in: whoever you give it to sees the job, too. Nobody is asked anything while no
        browser has the page open.

            print(cluster.web_url)      # http://127.0.0.1:40123/?token=...
        """
        url: str = of_room("web.server:page_url")(self.session)
        return url

    @property
    def metrics_url(self) -> str:
        """Where Prometheus on this machine reads the job's metrics: beside the page, for who has this address.

        Its token may be shown as `Authorization: Bearer ...` instead. `rlinf metrics` serves them at a port of your
        choice, and with a token that stays.

        Raises:
            ClusterError: prometheus-client is not installed.
        """
        url: str = of_room("web.server:metrics_url")(self.session)
        return url

    def subscribe(self, listener: Listener) -> None:
        """Have `listener` called with every event of the job that this process hears of, on a thread of its own."""
        self.session.bus.subscribe(listener)

    def close(self) -> None:
        """End what this object started: workers, channels, Ray. On a view of another's cluster it does nothing.

        Of a job that outlives its drivers it is left: groups that were launched here end, unless they are detached.
        """
        if self._owner:
            self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        if self._owner:
            self._session.close(why_left(raised))

    def __repr__(self) -> str:
        state = ", closed" if self._session.closed else ""
        accelerators = counted(self.num_accelerators, "accelerator")
        return f"Cluster({counted(self.num_nodes, 'node')}, {accelerators}{state})"


def _forget_opening() -> None:
    """Let a forked child open a cluster of its own: the thread that held the lock is its parent's."""
    global _opening
    _opening = threading.RLock()


on_fork_in_child(_forget_opening)


def _wanted_nodes(num_nodes: int | None, config: ClusterConfig | None) -> int | None:
    if num_nodes is not None and whole_number(num_nodes, lowest=1) is None:
        raise ConfigError(f"num_nodes={num_nodes!r}: it is a whole number from 1")
    if config is None:
        return num_nodes
    check_one_number(config.nodes, num_nodes)
    if config.nodes is not None:
        return config.nodes.least
    return num_nodes if num_nodes is not None else config.num_nodes


def _simulated_shape(
    simulate: str | Topology | None, config: ClusterConfig | None, *, opening: bool
) -> Topology | None:
    if isinstance(simulate, Topology):
        return simulate
    text = simulate or (config.simulate if config else None)
    if (
        not text and opening
    ):  # a view takes what there is: the variable is for programs that would need a cluster
        text = os.environ.get(SIMULATE_VARIABLE)
    return Topology.parse(text) if text else None


def _detached() -> ModuleType:
    # Few programs take part in a job that outlives them, and none of the others loads what that takes.
    from rlinf_scheduler import detached  # noqa: PLC0415

    return detached


def _check_job_options(job: str | None, simulate: object, *, detached: bool) -> None:
    if detached and not job:
        problem = "detached=True: other programs find a job that outlives this one by its name"
        raise ConfigError(problem, hint="Cluster(job=NAME, detached=True)")
    if job is None:
        return
    if not isinstance(job, str) or not job.isprintable() or not 0 < len(job) <= _MAX_JOB_NAME or "|" in job:
        raise ConfigError(f"job={job!r}: it is a name, a line of text without '|'")
    if simulate:
        problem = f"job={job!r} needs a Ray that runs by itself, and simulated nodes end with this program"
        raise ConfigError(problem, hint="`rlinf node start --head` begins one")


def _check_is_job(session: Session, name: str) -> None:
    detached = session.fact(DetachedJob)
    if detached is None or detached.name != name:
        there = "a job of its own" if detached is None else f"part in job '{detached.name}'"
        raise ConfigError(f"job={name!r}: this process has {there} already", hint="close that cluster first")


def _check_shape(topology: Topology, wanted: Topology) -> None:
    there, asked = ([node.num_accelerators for node in t.nodes] for t in (topology, wanted))
    if there != asked:
        raise ConfigError(
            f"nodes of {asked} accelerators are to be simulated, but this process has a cluster of {there} already",
            path="cluster.simulate",
            hint="close that one first",
        )


def _with_own_variables(shape: Topology) -> Topology:
    there = tuple((name, os.environ[name]) for name in hardware_variables() if name in os.environ)
    return replace(shape, nodes=tuple(replace(node, variables=there) for node in shape.nodes))


def _check_config(topology: Topology, config: ClusterConfig | None) -> None:
    _with_groups(topology, config)
    if config is not None and config.net_emulation is not None:
        config.check_emulated_nodes(topology)
    if config is not None and config.rules:
        ComponentPlacement(config, topology)


def _with_groups(topology: Topology, config: ClusterConfig | None) -> Topology:
    if config is None or not config.node_groups:
        return topology
    try:
        return topology.with_node_groups(fill_in_groups(config.node_groups, topology.nodes))
    except ConfigError as error:
        raise_config_errors(config.source.in_order(error.each()))
        raise
