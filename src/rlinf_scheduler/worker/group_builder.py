"""A worker class with its arguments, before it is launched: what may be asked of a launch, and what is made of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args

from rlinf_scheduler.checks import checked_seconds, explains_arguments, whole_number
from rlinf_scheduler.comm.directory import WORLD_SIZE
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.host.info import check_detached, checked_seed, keeps_elsewhere
from rlinf_scheduler.host.protocol import WorkerFactory
from rlinf_scheduler.log_level import level_of
from rlinf_scheduler.planning import (
    NodePlacementStrategy,
    PackedPlacementStrategy,
    PlacementStrategy,
    Topology,
)
from rlinf_scheduler.session import Session
from rlinf_scheduler.wording import did_you_mean
from rlinf_scheduler.worker.deaths import MAX_RESTARTS, RETURNING, VERDICTS, WITHIN_S, OnFailure
from rlinf_scheduler.worker.group import WorkerGroup
from rlinf_scheduler.worker.group_calls import GroupCalls
from rlinf_scheduler.worker.home import check_launches, launch_by_name, launch_group
from rlinf_scheduler.worker.order import GroupOrder, LaunchOptions, RestartLimit
from rlinf_scheduler.worker.signatures import check_arguments, encoded_factory, ready_method

T = TypeVar("T")
GroupT_co = TypeVar("GroupT_co", bound=WorkerGroup[Any], covariant=True)

# A rank that is stopped or stuck for so long is dead, unless its launch says otherwise.
UNRESPONSIVE_AFTER_S = 600.0
# Each has its thread from the beginning on. Programs that mean "any number" write 2**31 - 1.
MAX_THREADS = 500
RestartOn: TypeAlias = Literal["same", "any"]
_PLACES: tuple[str, ...] = get_args(RestartOn)


class OpenCluster(Protocol):
    """What a launch needs of a `Cluster`."""

    @property
    def session(self) -> Session:
        """This process's membership in the job."""

    @property
    def topology(self) -> Topology:
        """The nodes, with node groups."""


class GroupBuilder(Generic[T, GroupT_co]):
    """A worker class with its arguments, ready to be launched as a group of some class."""

    def __init__(
        self,
        worker_class: type[T],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        group_class: type[GroupT_co],
    ) -> None:
        check_arguments(worker_class, "__init__", args, kwargs)
        self._factory = WorkerFactory(worker_class, args, kwargs)
        self._group_class = group_class

    @explains_arguments
    def launch(
        self,
        cluster: OpenCluster,
        placement_strategy: PlacementStrategy | None = None,
        name: str | None = None,
        max_concurrency: int | None = None,
        isolate_gpu: bool = True,
        catch_system_failure: bool | None = None,
        disable_distributed_log: bool = False,
        *,
        launch_timeout_s: float = 120,
        on_failure: OnFailure = "fail",
        unresponsive_after_s: float | None = UNRESPONSIVE_AFTER_S,
        wait_s: float = 0,
        log_level: int | str | None = None,
        max_restarts: int | None = None,
        restart_window_s: float | None = None,
        restart_on: RestartOn | None = None,
        ready_when: Callable[[T], object] | str | None = None,
        stall_after_s: float | None = None,
        seed: int | None = None,
        detached: bool = False,
    ) -> GroupT_co:
        """Start every rank where the strategy places it; returns when each has finished `__init__`.

        Args:
            cluster: where to run.
            placement_strategy: which rank runs where; None: a rank an accelerator, or a node where there are none.
            name: the group's name in the job; None: the class's name, with a number where that is taken.
            max_concurrency: how many plain methods may run at a time on a rank, 500 at most; None: one, in order of
                arrival.
                `async def` methods run beside them, any number at a time.
            isolate_gpu: a rank sees only its own accelerators; False: all of its node's.
            catch_system_failure: changes nothing: how a rank has ended is always told.
            disable_distributed_log: changes nothing: each rank has a file of its own for what it prints.
            launch_timeout_s: how long all of it may take, in seconds.
            on_failure: what the death of a rank means: "fail" ends every pending and later call of the group with
                WorkerDied; "ignore" ends only the dead rank's own calls; "restart" too, and starts another process in
                its place, with the same arguments, name, devices and environment: later calls wait for that one.
                "restart_group", for ranks that run collectives, ends the others with it, and all come back together.
                Or a function that is called with each `WorkerLost`, on a thread of its own, and returns one of these.
            unresponsive_after_s: how long a rank may be stopped, or its interpreter be held, before it is dead, in
                seconds; None: for ever, to stop it in a debugger, say. `WorkerUnresponsive` tells of it long before.
            wait_s: how long to wait, in seconds, for devices that another job holds. A job holds the accelerators of
                its groups until it ends; its own groups share them freely.
            log_level: show what libraries log on the ranks from this level on, such as "INFO"; None: what `logging`
                itself prints there, warnings and worse.
            max_restarts: how often a rank is started again in `restart_window_s`, the first time at once, then after a
                growing delay; a rank that dies more often is as with "fail". None: five times.
            restart_window_s: see above, in seconds; None: 60.
            restart_on: where a rank comes back whose node is gone: "any" node of its node group that has as many
                devices of the same kind free; "same": nowhere, and that is as with "fail". None: "same".
            ready_when: a method without arguments, or its name, that a rank that was started again, or came by `grow`,
                a policy or a loan, runs after `__init__`, before it is called and before `WorkerReturned` is told: one
                that fetches the weights, say. It waits until the rank is ready, and then returns; if it raises, the
                start has failed.
            stall_after_s: after how many seconds the event `Stalled` tells of a call that some rank has not answered,
                or of a stream to which one owes a value, and why; None: never.
            seed: what each rank's `self.seed` is derived from, with its group and rank; then `random`, `numpy.random`
                and, where it is loaded, torch are seeded with it before `__init__`, also in a rank's successor.
                None: one that is drawn once for the job, and no generator is touched.
            detached: the group goes on when its driver has ended, until somebody ends it; in a job that outlives its
                drivers, see `Cluster(job=..., detached=True)`.

        Raises:
            PlacementError: the strategy does not fit the cluster.
            ConfigError: an argument is not what is said above, or is about ranks that come back where none does.
            CodecError: an argument of `create_group` cannot be sent; the text names it.
            NodeLost: a node that it is placed on is gone.
            ClusterError: Ray's head does not answer.
            DeviceHeld: another job, or another program of Ray's, has some of the accelerators.
            LaunchError: the name is taken, or a rank failed to start; the text holds its traceback.
            LaunchTimeout: some ranks were not ready in time; the text says what each waits for.
        """
        check_on_failure(on_failure)
        check_is_used(
            on_failure,
            max_restarts=max_restarts,
            restart_window_s=restart_window_s,
            restart_on=restart_on,
        )
        limit = restart_limit(max_restarts, restart_window_s)
        timeout_s = checked_seconds("launch_timeout_s", launch_timeout_s)
        if max_concurrency is not None and whole_number(max_concurrency, lowest=1) is None:
            problem = f"max_concurrency={max_concurrency!r}: it is a whole number from 1"
            raise ConfigError(problem, hint="isolate_gpu=... is written by its name")
        if unresponsive_after_s is not None and not unresponsive_after_s > 0:
            problem = f"unresponsive_after_s={unresponsive_after_s!r}: it is a number of seconds, or None"
            raise ConfigError(problem)
        strategy = placement_strategy or _a_rank_a_resource(cluster)
        placements = strategy.get_placement(cluster, isolate_gpu=isolate_gpu)
        num_threads = min(max_concurrency or 1, MAX_THREADS)
        options = LaunchOptions(num_threads, timeout_s, cluster.topology)
        options = replace(
            options,
            unresponsive_after_s=unresponsive_after_s,
            wait_s=checked_seconds("wait_s", wait_s),
            library_level=0 if log_level is None else level_of(log_level, "log_level"),
            on_failure=on_failure,
            limit=limit,
            ready_when=ready_method(self._factory.worker_class, ready_when),
            stall_after_s=checked_seconds("stall_after_s", stall_after_s or 0),
            seed=None if seed is None else checked_seed(seed),
            moves=may_move(restart_on),
        )
        session, factory = cluster.session, self._factory
        launch: Callable[[str], GroupCalls[Any]]
        check_detached(session, detached=detached)
        order = GroupOrder(encoded_factory(factory), tuple(placements), options, factory.worker_class)
        if keeps_elsewhere(session):
            # Few programs have such a job.
            from rlinf_scheduler.worker.remote_home import RemoteHome  # noqa: PLC0415

            launch = session.service(RemoteHome).launcher(order, detached=detached)
        else:
            check_launches(session)
            launch = partial(launch_group, session, order)
        about = {WORLD_SIZE: len(placements)}
        claimed, launched = launch_by_name(session, launch, name, factory.worker_class.__name__, about)
        return self._group_class(claimed, factory.worker_class, len(placements), launched)


def _a_rank_a_resource(cluster: OpenCluster) -> PlacementStrategy:
    topology = cluster.topology
    if topology.num_accelerators:
        return PackedPlacementStrategy(0, topology.num_accelerators - 1)
    return NodePlacementStrategy(list(range(len(topology.nodes))))


def check_on_failure(wanted: object) -> None:
    """Make sure that it says what a death means.

    Raises:
        ConfigError: it does not.
    """
    if not callable(wanted) and wanted not in VERDICTS:
        known = ", ".join(map(repr, VERDICTS))
        hint = did_you_mean(wanted, VERDICTS) if isinstance(wanted, str) else ""
        problem = f"on_failure={wanted!r}: it is one of {known}, or a function that returns one"
        raise ConfigError("; ".join(filter(None, [problem, hint])))


def check_is_used(on_failure: object, **options: object) -> None:
    """Make sure that options about ranks that come back are given only where ranks may come back.

    Raises:
        ConfigError: one is given, and what dies is not started again.
    """
    if on_failure in RETURNING or callable(on_failure):
        return
    for name, value in options.items():
        if value is not None:
            problem = f"{name}= is for ranks that come back, and with on_failure={on_failure!r} none does"
            raise ConfigError(problem, hint="on_failure='restart', or a function that decides for each death")


def restart_limit(most: object, within_s: object) -> RestartLimit:
    """How often a rank comes back; None is the usual number.

    Raises:
        ConfigError: these are no such numbers.
    """
    most = MAX_RESTARTS if most is None else most
    within_s = WITHIN_S if within_s is None else within_s
    if type(most) is not int or most < 0:
        raise ConfigError(f"max_restarts={most!r}: it is a whole number from 0")
    if isinstance(within_s, bool) or not isinstance(within_s, (int, float)) or not within_s > 0:
        raise ConfigError(f"restart_window_s={within_s!r}: it is a number of seconds")
    return RestartLimit(most, float(within_s))


def may_move(wanted: object) -> bool:
    """Whether a rank whose node is gone comes back on another one.

    Raises:
        ConfigError: it does not say so.
    """
    if wanted not in (None, *_PLACES):
        raise ConfigError(f"restart_on={wanted!r}: it is one of {', '.join(map(repr, _PLACES))}")
    return wanted == "any"
