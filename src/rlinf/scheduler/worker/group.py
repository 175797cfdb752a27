"""`WorkerGroup`: the ranks of a component as one object; calling a method calls it on every rank."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeAlias, TypeVar, overload

from rlinf.scheduler.comm import Encoded, encode
from rlinf.scheduler.comm.promise import Promise
from rlinf.scheduler.comm.waits import LAUNCH, Wait, awaited
from rlinf.scheduler.errors import (
    CallArgumentError,
    CodecError,
    CommError,
    ConfigError,
    GroupExists,
    NameTaken,
    PlacementError,
)
from rlinf.scheduler.host.info import check_detached, group_entry, keeps_elsewhere
from rlinf.scheduler.host.protocol import CallKind, WorkerFactory
from rlinf.scheduler.host.seeds import checked_seed
from rlinf.scheduler.keywords import explains_arguments
from rlinf.scheduler.observe.profiling import RATE_HZ
from rlinf.scheduler.observe.rank_stacks import RankStack, stacks_of
from rlinf.scheduler.observe.why import WITHIN_S
from rlinf.scheduler.planning import (
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Placement,
    PlacementStrategy,
    Topology,
)
from rlinf.scheduler.session import Session
from rlinf.scheduler.tape.limit import limit_bytes
from rlinf.scheduler.wording import list_names
from rlinf.scheduler.worker.call import Call
from rlinf.scheduler.worker.deaths import OnFailure, Policy
from rlinf.scheduler.worker.group_calls import GroupCalls
from rlinf.scheduler.worker.health import RankHealth
from rlinf.scheduler.worker.launch import LaunchOptions, Recipe, launch_ranks, launch_successor
from rlinf.scheduler.worker.profile import take_profile
from rlinf.scheduler.worker.restart_options import (
    RestartOn,
    check_is_used,
    check_on_failure,
    may_move,
    ready_method,
    restart_limit,
)
from rlinf.scheduler.worker.result import GroupResult
from rlinf.scheduler.worker.seconds import checked_deadline, checked_seconds
from rlinf.scheduler.worker.signatures import (
    check_arguments,
    check_attribute,
    check_method,
    kind_of,
    public_methods,
)
from rlinf.scheduler.worker.starting import LaunchFunction, begin
from rlinf.scheduler.worker.stream import GroupStream
from rlinf.scheduler.worker.stream_call import StreamCall, ValueCell
from rlinf.scheduler.worker.successors import RestartLimit
from rlinf.scheduler.worker.supervision import Supervision

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

# How many values of a stream a rank may have computed ahead.
PREFETCH = 2
# A rank that is stopped or stuck for so long is dead, unless its launch says otherwise.
UNRESPONSIVE_AFTER_S = 600.0
RESTART_TIMEOUT_S = 120.0
RECORD_VARIABLE = "RLINF_RECORD"


class OpenCluster(Protocol):
    """What a launch needs of a `Cluster`."""

    @property
    def session(self) -> Session:
        """This process's membership in the job."""

    @property
    def topology(self) -> Topology:
        """The nodes, with node groups."""


class GroupBuilder(Generic[T]):
    """A worker class with its arguments, ready to be launched."""

    def __init__(self, worker_class: type[T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        _check_method_names(worker_class)
        check_arguments(worker_class, "__init__", args, kwargs)
        self._factory = WorkerFactory(worker_class, args, kwargs)

    @explains_arguments
    def launch(
        self,
        cluster: OpenCluster,
        placement_strategy: PlacementStrategy | None = None,
        name: str | None = None,
        isolate_gpu: bool = True,
        max_concurrency: int | None = None,
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
        record: str | os.PathLike[str] | None = None,
        detached: bool = False,
    ) -> WorkerGroup[T]:
        """Start every rank where the strategy places it; returns when each has finished `__init__`.

        Args:
            cluster: where to run.
            placement_strategy: which rank runs where; None: a rank an accelerator, or a node where there are none.
            name: the group's name in the job; None: the class's name, with a number where that is taken.
            isolate_gpu: a rank sees only its own accelerators; False: all of its node's.
            max_concurrency: how many plain methods may run at a time on a rank; None: one, in order of arrival.
                `async def` methods run beside them, any number at a time.
            launch_timeout_s: how long all of it may take, in seconds.
            on_failure: what the death of a rank means: "fail" ends every pending and later call of the group with
                WorkerDied; "ignore" ends only the dead rank's own calls; "restart" too, and starts another process in
                its place, with the same arguments, name, devices and environment: later calls wait for that one. Or a
                function that is called with each `WorkerLost`, on a thread of its own, and returns one of these words.
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
            ready_when: a method without arguments, or its name, that a rank that was started again runs after
                `__init__`, before it is called and before `WorkerReturned` is told: one that fetches the weights, say.
                It waits until the rank is ready, and then returns; if it raises, the start has failed.
            stall_after_s: after how many seconds the event `Stalled` tells of a call that some rank has not answered,
                and why; None: never.
            seed: what each rank's `self.seed` is derived from, with its group and rank; then `random`, `numpy.random`
                and, where it is loaded, torch are seeded with it before `__init__`, also in whoever takes a rank's
                place. None: one that is drawn once for the job, and no generator is touched.
            record: a folder, in which each rank records what comes to it, on its node, so that `rlinf replay` can run
                it again alone. None: the folder that RLINF_RECORD names, if it is set. RLINF_RECORD_MIB bounds each
                file. Both are looked for in the environment of who launches.
            detached: the group goes on when its driver has ended, until somebody ends it; in a job that outlives its
                drivers, see `Cluster(job=..., detached=True)`.

        Raises:
            PlacementError: the strategy does not fit the cluster.
            ConfigError: an argument is not what is said above, or is about ranks that come back where none does.
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
            ready_when=ready_when,
        )
        limit = restart_limit(max_restarts, restart_window_s)
        timeout_s = checked_seconds("launch_timeout_s", launch_timeout_s)
        if max_concurrency is not None and max_concurrency < 1:
            raise ConfigError(f"max_concurrency={max_concurrency}: at least one call must be able to run")
        if unresponsive_after_s is not None and not unresponsive_after_s > 0:
            problem = f"unresponsive_after_s={unresponsive_after_s!r}: it is a number of seconds, or None"
            raise ConfigError(problem)
        strategy = placement_strategy or _a_rank_a_resource(cluster)
        placements = strategy.get_placement(cluster, isolate_gpu=isolate_gpu)
        recordings = _recordings(record)
        options = LaunchOptions(max_concurrency or 1, timeout_s, cluster.topology)
        options = replace(
            options,
            unresponsive_after_s=unresponsive_after_s,
            wait_s=checked_seconds("wait_s", wait_s),
            library_level=_level(log_level),
            returns=on_failure == "restart" or callable(on_failure),
            ready_when=ready_method(self._factory.worker_class, ready_when),
            stall_after_s=checked_seconds("stall_after_s", stall_after_s or 0),
            seed=None if seed is None else checked_seed(seed),
            record=recordings,
            record_bytes=limit_bytes() if recordings else 0,
            moves=may_move(restart_on),
        )
        session, factory = cluster.session, self._factory
        check_detached(session, detached=detached)
        launch: LaunchFunction[GroupCalls[Any]]
        if keeps_elsewhere(session):
            # Few programs have such a job.
            from rlinf.scheduler.worker.kept_job import prepare_kept_launch  # noqa: PLC0415

            claimed, launch = prepare_kept_launch(
                session, factory, placements, name, options, on_failure, limit, detached=detached
            )
        else:
            claimed, launch = prepare_launch(session, factory, placements, name, options, on_failure, limit)
        return WorkerGroup(claimed, factory.worker_class, len(placements), begin(session, launch))


def _recordings(wanted: str | os.PathLike[str] | None) -> str:
    """The folder in which ranks are recorded; "" if they are not."""
    folder = wanted or os.environ.get(RECORD_VARIABLE)
    return os.path.abspath(folder) if folder else ""


def _level(wanted: int | str | None) -> int:
    if wanted is None:
        return 0
    known = logging.getLevelNamesMapping()
    level = known.get(wanted.upper()) if isinstance(wanted, str) else wanted
    if type(level) is not int or level < 0:
        raise ConfigError(f"log_level={wanted!r}: it is a number from 0, or one of {list_names(known)}")
    return level


def _a_rank_a_resource(cluster: OpenCluster) -> PlacementStrategy:
    topology = cluster.topology
    if topology.num_accelerators:
        return PackedPlacementStrategy(0, topology.num_accelerators - 1)
    return NodePlacementStrategy(list(range(len(topology.nodes))))


def prepare_launch(
    session: Session,
    factory: WorkerFactory,
    placements: Sequence[Placement],
    name: str | None,
    options: LaunchOptions,
    on_failure: Policy = "fail",
    limit: RestartLimit | None = None,
) -> tuple[str, LaunchFunction[Supervision]]:
    """Take a group's name; returns it, and what launches the group on placements that are decided already.

    Raises:
        GroupExists: the name is taken.
    """
    # What holds channels is no group of workers that anything could be placed beside.
    about = {} if options.registers_itself else {"world_size": len(placements)}
    claimed = claim_name(session, name, factory.worker_class.__name__, about)

    def launch() -> Supervision:
        try:
            recipe = Recipe(session, claimed, factory, options, len(placements))
            ranks = launch_ranks(session, placements, recipe)
        except BaseException:
            with suppress(CommError):  # without a job no name is taken
                session.directory.unregister(group_entry(claimed))
            raise
        start_successor = partial(launch_successor, session, recipe)
        stall_after_s = options.stall_after_s
        return Supervision(session, claimed, ranks, on_failure, start_successor, limit, stall_after_s)

    return claimed, launch


def claim_name(
    session: Session, wanted: str | None, class_name: str, about: dict[str, int], claimant: str = ""
) -> str:
    """Take a group's name in the directory, so that no other group has it.

    A group that a worker launches is called after it, `outer:0/inner`: each rank may have one of that name.

    Args:
        session: of this process, which has the name then.
        wanted: the name; None for the class's, with a number where that is taken.
        class_name: see above.
        about: what the directory says of the group.
        claimant: who wants it; this process where nothing is said.

    Raises:
        GroupExists: the name is taken.
        ConfigError: it is no name.
    """
    claimant = claimant or session.name
    if wanted is not None and not isinstance(wanted, str):
        raise ConfigError(f"group name {wanted!r}: it is text", hint=f"name={str(wanted)!r}")
    if wanted is not None and (not wanted or set(":/") & set(wanted)):
        raise ConfigError(f"group name {wanted!r}: it must not be empty, nor hold a colon or a slash")
    parent = f"{claimant}/" if ":" in claimant else ""
    for number in itertools.count(1):
        name = parent + (wanted or (class_name if number == 1 else f"{class_name}-{number}"))
        try:
            session.directory.register(group_entry(name), session.messenger.endpoint, about)
        except NameTaken as error:
            if wanted is not None:
                raise GroupExists(name, "a group or a channel of this name is there already") from error
        else:
            return name
    raise AssertionError("unreachable: some number is free")


class RemoteMethod:
    """A method of a group's class; calling it calls it on the ranks."""

    def __init__(self, group: WorkerGroup[Any], method: str) -> None:
        self._group = group
        self._method = method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it on every rank; returns at once: a `GroupResult`, of a generator a `GroupStream`."""
        return self._group.call_method(self._method, args, kwargs)

    def __repr__(self) -> str:
        return f"<{self._method} on {self._group!r}>"


class WorkerGroup(Generic[T]):
    """A launched group. `group.method(...)` calls `method` on every rank and returns a `GroupResult` at once.

    Of a method that is a generator it returns a `GroupStream`. What a group has itself (`name`, `call`, ...) no method
    of its class can be called.
    """

    def __init__(
        self,
        name: str,
        worker_class: type[T],
        world_size: int,
        launched: Promise[GroupCalls[Any]],
    ) -> None:
        self._name = name
        self._launched = launched
        self._worker_class = worker_class
        self._world_size = world_size
        self._selected: tuple[int, ...] = tuple(range(world_size))
        self._retries = False

    @property
    def name(self) -> str:
        """Its name in the job."""
        return self._name

    @property
    @awaited(lambda local: Wait(LAUNCH, f"launch of '{local['self'].name}'"))
    def _shared(self) -> GroupCalls[Any]:
        """Its processes, once they have been launched; raises what the launch failed with."""
        self._launched.wait()
        return self._launched.result(0)

    @property
    def world_size(self) -> int:
        """How many ranks it has, whatever a view selects."""
        return self._world_size

    @property
    def placements(self) -> list[Placement]:
        """Where each rank runs."""
        return [rank.placement for rank in self._shared.ranks]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that calls go to: all of them, or those of an `execute_on` view."""
        return self._selected

    def execute_on(self, *ranks: int) -> WorkerGroup[T]:
        """A view whose calls go to these ranks only, in this order; `self` is not changed.

        Ranks are taken as they are: -1 is none. `group[-1]` is the last one.

        Raises:
            PlacementError: the group has no such rank, or one is named twice.
        """
        for rank in ranks:
            if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < self.world_size:
                raise PlacementError(
                    f"group '{self.name}' has ranks 0 to {self.world_size - 1}, not {rank!r}"
                )
        if len(set(ranks)) != len(ranks) or not ranks:
            raise PlacementError(f"execute_on{ranks}: name at least one rank, and each once")
        return self._view(ranks)

    def __getitem__(self, ranks: int | slice) -> WorkerGroup[T]:
        """`group[0:4]`, `group[-1]`: a view whose calls go to these ranks only; `self` is not changed.

        Raises:
            PlacementError: the group has no such rank.
        """
        if isinstance(ranks, slice):
            return self.execute_on(*range(self.world_size)[ranks])
        return self.execute_on(ranks + self.world_size if -self.world_size <= ranks < 0 else ranks)

    def scatter(self, *arguments: Sequence[Any], **named: Sequence[Any]) -> ScatteredGroup[T]:
        """A view whose calls give each rank arguments of its own: `group.scatter([a, b, c]).method(common)`.

        Rank 0 runs `method(a, common)`, rank 1 `method(b, common)`.

        Args:
            *arguments: for each positional argument a sequence with one value a rank, in the order of `ranks`.
            **named: likewise for arguments by name.

        Raises:
            CallArgumentError: some sequence is not as long as there are ranks.
        """
        columns = {**{f"argument {place}": each for place, each in enumerate(arguments)}, **named}
        for name, column in columns.items():
            if len(column) != len(self._selected):
                problem = f"{name} has {len(column)} values for {len(self._selected)} ranks"
                raise CallArgumentError(f"{self.name}.scatter()", problem, "one value a rank")
        view = ScatteredGroup(self._name, self._worker_class, self._world_size, self._launched)
        view._selected, view._retries = self._selected, self._retries
        view._first = tuple(
            (tuple(each[index] for each in arguments), {name: each[index] for name, each in named.items()})
            for index in range(len(self._selected))
        )
        return view

    def retrying(self) -> WorkerGroup[T]:
        """A view whose calls are made again, on its successor, where a rank dies during them: `retrying().serve()`.

        For a group with `on_failure="restart"`, and for methods that may be begun again at any point: the dead rank may
        have done a part. A call still ends with WorkerDied when a rank does not come back. Streams are not made again.
        """
        view = self._view(self._selected)
        view._retries = True
        return view

    def _view(self, ranks: tuple[int, ...]) -> WorkerGroup[T]:
        view = WorkerGroup(self._name, self._worker_class, self._world_size, self._launched)
        view._selected, view._retries = ranks, self._retries
        return view

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Arguments]:
        """What the ranks are called with: the same, or in a list one for each."""
        return [(args, kwargs)]

    @overload
    def call(
        self, method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs
    ) -> GroupResult[R]: ...

    @overload
    def call(  # type: ignore[overload-overlap]  # a plain method's result may be of any type
        self,
        method: Callable[Concatenate[T, P], Iterator[R] | AsyncIterator[R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> GroupStream[R]: ...

    @overload
    def call(
        self, method: Callable[Concatenate[T, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> GroupResult[R]: ...

    def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`group.call(Policy.act, observation)`: as `group.act(observation)`, and a type checker sees through it.

        Args:
            method: a method of the group's class, or of one that it derives from; the ranks run their own class's.
            *args: its arguments.
            **kwargs: likewise.

        Raises: as `call_method`.
        """
        return self.call_method(method.__name__, args, kwargs)

    def get(self, name: str) -> GroupResult[Any]:
        """What each rank has as its attribute or property `name`.

        It is read between two calls, in the order of the calls, as a plain method would be.

        Raises:
            AttributeError: the name is private, or a method's.
        """
        check_attribute(self._worker_class, name)
        result: GroupResult[Any] = self._begin(name, [encode(((), {}))], "get")
        return result

    def call_method(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method by name on the selected ranks; `group.method(...)` is the usual way to write it.

        Returns:
            A `GroupResult`; of a method that is a generator, a `GroupStream`.

        Raises:
            AttributeError: the class has no such method, or it is private.
            CallArgumentError: it does not take these arguments.
            WorkerDied: a rank that the call depends on is gone.
            CodecError: an argument cannot be sent.
        """
        check_method(self._worker_class, method)
        calls = self._arguments(args, kwargs)
        for each_args, each_kwargs in calls:
            check_arguments(self._worker_class, method, each_args, each_kwargs)
        # What cannot be called any more need not be encoded.
        self._check_alive()
        encoded = [self._encoded(method, *each) for each in calls]
        return self._begin(method, encoded, kind_of(self._worker_class, method))

    def _check_alive(self) -> None:
        self._shared.session.messenger.check_process()
        self._shared.check_alive(self._selected)

    def _begin(self, method: str, encoded: list[Encoded], kind: CallKind) -> Any:
        """Call a method on the selected ranks, with the same arguments or with one set for each."""
        self._check_alive()
        shared, session = self._shared, self._shared.session
        targets = [shared.target(number) for number in self._selected]
        arguments = encoded[0] if len(encoded) == 1 else encoded
        heads = [ValueCell() for _ in targets]
        call: Call
        if kind == "stream":
            call = StreamCall(session.messenger, method, targets, arguments, heads, PREFETCH)
        elif self._retries:
            call = Call(session.messenger, method, targets, arguments, kind, shared.next_target)
        else:
            call = Call(session.messenger, method, targets, arguments, kind)
        reason_of_death = partial(shared.reason_of_death, call)
        result: GroupResult[Any] = GroupResult(call, reason_of_death, session.log_bus.flush)
        shared.begin(call, result)
        return GroupStream(call, result, heads) if isinstance(call, StreamCall) else result

    def _encoded(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Encoded:
        try:
            return encode((args, kwargs))
        except CodecError as error:
            raise CodecError(f"{self.name}.{method}(): an argument cannot be sent: {error}") from error

    def health(self) -> list[RankHealth]:
        """How the selected ranks are, as this process knows: it asks nobody and does not wait."""
        return [self._shared.health(number) for number in self._selected]

    def stack(self, within_s: float = WITHIN_S) -> list[RankStack]:
        """Where the selected ranks are: the stacks of their threads, also of one that is blocked, in C or otherwise.

            print(*group.stack())

        Args:
            within_s: how long they may take to answer, in seconds.

        Raises:
            ClusterError: the job's driver does not answer.
        """
        shared = self._shared
        names = [str(shared.ranks[number].address) for number in self._selected]
        return stacks_of(shared.session, names, within_s)

    def profile(
        self, seconds: float, path: str | os.PathLike[str] | None = None, *, rate_hz: float = RATE_HZ
    ) -> Path:
        """Write where the selected ranks spend their time from now on, as a flame graph for speedscope.app.

        Each rank looks at its threads by itself; at a hundred times a second that costs less than a hundredth.

        Args:
            seconds: for how long.
            path: the file; None: `<group>.speedscope.json` in the present folder.
            rate_hz: how often a second.

        Returns:
            The file.

        Raises:
            ConfigError: `seconds` or `rate_hz` is no number above 0.
            ResultTimeout: no rank answers.
        """
        for name, value in (("seconds", seconds), ("rate_hz", rate_hz)):
            if not checked_seconds(name, value):
                raise ConfigError(f"{name}={value!r}: it is a number above 0")
        shared = self._shared
        file = Path(path if path is not None else f"{self.name.replace('/', '-')}.speedscope.json")
        ranks = [shared.ranks[number] for number in self._selected]
        take_profile(shared.session.messenger, ranks, seconds, rate_hz, file)
        return file

    def restart(self, rank: int, timeout_s: float = RESTART_TIMEOUT_S) -> None:
        """Have another process take a rank's place, whatever `on_failure` is, and wait until it is ready.

        For one that is dead, and for one that lives and is stuck, say: its calls end with WorkerDied then. How often it
        was started again before does not count any more.

        Args:
            rank: which.
            timeout_s: how long to wait, in seconds.

        Raises:
            PlacementError: the group has no such rank, or this is a view without it.
            ConfigError: `timeout_s` is no number of at least 0.
            WorkerDied: it cannot be started, or the group was terminated.
            LaunchTimeout: it is not ready at the deadline; it may be later.
        """
        limit_s = checked_seconds("timeout_s", timeout_s)
        self.execute_on(rank)
        if rank not in self._selected:
            raise PlacementError(f"restart({rank}): {self!r} is a view without that rank")
        self._shared.restart(rank, limit_s)

    def terminate(self) -> None:
        """End every rank: after the call that it runs now, or after two seconds by force.

        Raises:
            PlacementError: this is a view of some of the ranks; only the whole group can be ended.
        """
        self._check_whole("terminate()")
        self._shared.stop()

    def shutdown(self, timeout_s: float | None = None) -> None:
        """End every rank once it has answered the calls that it has got; no other call is taken.

        `with group:` does so at its end; `terminate`, if the block raises.

        Args:
            timeout_s: after which a rank that has not ended is killed, in seconds; None: calls may take as long as they
                do. A warning says after a while whose are waited for.

        Raises:
            PlacementError: this is a view of some of the ranks; only the whole group can be ended.
            ConfigError: `timeout_s` is neither None nor a number of at least 0.
        """
        limit_s = checked_deadline(timeout_s)
        self._check_whole("shutdown()")
        self._shared.shutdown(limit_s)

    def _check_whole(self, what: str) -> None:
        if len(self._selected) < self.world_size:
            problem = f"{what} ends all {self.world_size} ranks of '{self.name}', and this is a view of some"
            ranks = ", ".join(map(str, self._selected))
            raise PlacementError(f"{problem} ({ranks}): call it on the group itself")

    def __enter__(self) -> Self:
        self._check_whole("`with`")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.shutdown()
        else:
            self.terminate()

    def __getattr__(self, name: str) -> RemoteMethod:
        # Looked up only when this class has no such attribute: so it is a method of the user's class, or a mistake.
        if name.startswith("__") or "_worker_class" not in self.__dict__:
            raise AttributeError(name)
        check_method(self._worker_class, name)
        return RemoteMethod(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *public_methods(self._worker_class)})

    def __repr__(self) -> str:
        which = "" if len(self._selected) == self.world_size else f", ranks {list(self._selected)}"
        return f"WorkerGroup({self.name!r}, {self.world_size} x {self._worker_class.__name__}{which})"


class ScatteredGroup(WorkerGroup[T]):
    """A view that `scatter` made: each rank is called with arguments of its own, then with those of the call."""

    _first: tuple[Arguments, ...]

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Arguments]:
        return [((*first, *args), {**named, **kwargs}) for first, named in self._first]


def _check_method_names(worker_class: type) -> None:
    own = {name for name in vars(WorkerGroup) if not name.startswith("_")}
    clash = sorted(own.intersection(public_methods(worker_class)))
    if clash:
        raise ConfigError(
            f"{worker_class.__name__} has methods that could not be called on a group: {', '.join(clash)}",
            hint="rename them: a WorkerGroup has attributes of these names itself",
        )
