"""`WorkerGroup`: the ranks of a component as one object; calling a method calls it on every rank."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeAlias, TypeVar, overload

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.checks import checked_deadline, checked_seconds, explains_calls
from rlinf_scheduler.comm import Encoded, encode
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.waits import LAUNCH, Wait, awaited
from rlinf_scheduler.errors import (
    CallArgumentError,
    CodecError,
    ConfigError,
    PlacementError,
)
from rlinf_scheduler.host.protocol import CallKind
from rlinf_scheduler.observe.why import WITHIN_S, RankStack, stacks_of
from rlinf_scheduler.planning import Placement, PlacementStrategy
from rlinf_scheduler.rooms import of_room
from rlinf_scheduler.session.membership import GroupMembers
from rlinf_scheduler.wording import counted
from rlinf_scheduler.worker.call import Call, CallAgain
from rlinf_scheduler.worker.group_calls import GroupCalls, RankHealth
from rlinf_scheduler.worker.order import Growth, Shrinkage
from rlinf_scheduler.worker.result import GroupResult
from rlinf_scheduler.worker.signatures import (
    LIBRARY,
    check_arguments,
    check_attribute,
    check_method,
    is_users_method,
    kind_of,
    public_methods,
    ready_method,
    unsendable,
)
from rlinf_scheduler.worker.stream import GroupStream, StreamCall, ValueCell

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

RESTART_TIMEOUT_S = 120.0
GROW_TIMEOUT_S = 120.0
DRAIN_S = 30.0
# How often a second a profile looks.
RATE_HZ = 100.0

# What a group that is sent elsewhere finds anew there, or is made of.
_OF_THE_PROCESS = frozenset(["_name", "_launched", "_worker_class", "_world_size"])


class RemoteMethod:
    """A method of a group's class; calling it calls it on the ranks."""

    def __init__(self, group: WorkerGroup[Any], method: str) -> None:
        self._group = group
        self._method = method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it on every rank; returns at once: a `GroupResult`, of a generator a `GroupStream`."""
        return self._group._call_method(self._method, args, kwargs)

    def __repr__(self) -> str:
        return f"<{self._method} on {self._group!r}>"


class _UsersMethod:
    """In the class of a group: a method of the group's own class, which has a name that groups have too."""

    def __init__(self, method: str) -> None:
        self._method = method

    def __get__(self, group: WorkerGroup[Any], _owner: type) -> RemoteMethod:
        return RemoteMethod(group, self._method)


@explains_calls
class WorkerGroup(Generic[T]):
    """A launched group. `group.method(...)` calls `method` on every rank and returns a `GroupResult` at once.

    Of a method that is a generator it returns a `GroupStream`. Where the class has a method of a name that a group has
    itself (`shutdown`, `get`, `name`, ...), `group.shutdown()` calls the class's. What the group has is reached through
    `WorkerGroup` then: `WorkerGroup.shutdown(group)`, `WorkerGroup.plain(group).name`.

    A group, or a view of one, may be an argument, a result or an item: the process that gets it calls the same ranks.
    Only the process that has launched it can end or restart them.
    """

    if not TYPE_CHECKING:  # whose parameters would be taken for those of the class

        def __new__(cls, _name: str = "", worker_class: type | None = None, *_others: Any) -> Self:
            """Let the methods of the group's class win; a copy, of which no class is given, has them already."""
            return object.__new__(cls if worker_class is None else _named_after(cls, worker_class))

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
        self._selected: tuple[int, ...] | None = None
        self._retries = False
        self._is_plain = False

    def plain(self) -> Self:
        """The same group, or view, with what a group has itself under every name: `WorkerGroup.plain(group).name`.

        For a group whose class has methods of such names. It and its views call those by `call` and `call_method`.
        """
        view: Self = object.__new__(getattr(type(self), "_without_users", type(self)))
        vars(view).update(vars(self), _is_plain=True)
        return view

    @property
    def name(self) -> str:
        """Its name in the job."""
        return self._name

    @property
    @awaited(lambda local: Wait(LAUNCH, f"launch of '{local['self']._name}'"))
    def _shared(self) -> GroupCalls[Any]:
        """Its processes, once they have been launched; raises what the launch failed with."""
        launched = self._launched
        if not launched.done():
            launched.wait()
        return launched.result(0)

    @property
    def world_size(self) -> int:
        """How many ranks it has now, whatever a view selects."""
        return self._members.world_size

    @property
    def members(self) -> GroupMembers:
        """The ranks that it has now, whatever a view selects."""
        return self._members

    @property
    def _members(self) -> GroupMembers:
        launched = self._launched
        if launched.done() and launched.exception(0) is None:
            return launched.result(0).members
        return GroupMembers(self._name, tuple(range(self._world_size)))

    @property
    def _chosen(self) -> tuple[int, ...]:
        return self._members.ranks if self._selected is None else self._selected

    @property
    def placements(self) -> list[Placement]:
        """Where each rank runs."""
        return [self._shared.rank(rank).placement for rank in self._shared.members.ranks]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that calls go to: those that it has now, or those of an `execute_on` view."""
        return self._chosen

    def execute_on(self, *ranks: int) -> Self:
        """A view whose calls go to these ranks only, in this order; `self` is not changed.

        Ranks are taken as they are: -1 is none. `group[-1]` is the last one.

        Raises:
            PlacementError: the group has no such rank, or one is named twice.
        """
        return self._on(ranks)

    def _on(self, ranks: tuple[int, ...]) -> Self:
        for rank in ranks:
            if isinstance(rank, bool) or not isinstance(rank, int) or rank not in self._members:
                raise PlacementError(f"group '{self._name}' has {self._members.in_words}, not {rank!r}")
        if len(set(ranks)) != len(ranks) or not ranks:
            raise PlacementError(f"execute_on{ranks}: name at least one rank, and each once")
        return self._view(ranks)

    def __getitem__(self, ranks: int | slice) -> Self:
        """A view whose calls go to some: `group[3]` to that rank, `group[-1]` to the last, `group[:4]` to the first 4.

        Raises:
            PlacementError: the group has no such rank.
        """
        if isinstance(ranks, slice):
            return self._on(self._members.ranks[ranks])
        is_from_end = -self._members.world_size <= ranks < 0
        return self._on((self._members.ranks[ranks] if is_from_end else ranks,))

    def scatter(self, *arguments: Sequence[Any], **named: Sequence[Any]) -> Self:
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
            if len(column) != len(self._chosen):
                problem = (
                    f"{name} has {counted(len(column), 'value')} for {counted(len(self._chosen), 'rank')}"
                )
                raise CallArgumentError(f"{self._name}.scatter()", problem, "one value a rank")
        view: Self = self._copied_as(ScatteredGroup)
        vars(view)["_selected"] = self._chosen
        vars(view)["_first"] = tuple(
            (tuple(each[index] for each in arguments), {name: each[index] for name, each in named.items()})
            for index in range(len(self._chosen))
        )
        return view

    def retrying(self) -> Self:
        """A view whose calls are made again, on its successor, where a rank dies during them: `retrying().serve()`.

        For a group with `on_failure="restart"`, and for methods that may be begun again at any point: the dead rank may
        have done a part. With "restart_group" all ranks of the call begin it again. A call still ends with WorkerDied
        when a rank does not come back. Streams are not made again.
        """
        view: Self = self._copied_as(WorkerGroup)
        view._retries = True
        return view

    def _view(self, ranks: tuple[int, ...]) -> Self:
        view: Self = self._copied_as(WorkerGroup)
        view._selected = ranks
        return view

    def _copied_as(self, kind: type[Any]) -> Any:
        kinds: tuple[Any, Any] = kind, self._worker_class
        view = object.__new__(kind if self._is_plain else _named_after(*kinds))
        vars(view).update(vars(self))
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
        return self._call_method(method.__name__, args, kwargs)

    def get(self, name: str) -> GroupResult[Any]:
        """What each rank has as its attribute or property `name`.

        It is read between two calls, in the order of the calls, as a plain method would be.

        Raises:
            AttributeError: the name is private, or a method's.
        """
        check_attribute(self._worker_class, name)
        self._check_alive()
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
            CodecError: an argument cannot be sent; the text names it.
        """
        return self._call_method(method, args, kwargs)

    def _call_method(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        check_method(self._worker_class, method)
        calls = self._arguments(args, kwargs)
        for each_args, each_kwargs in calls:
            check_arguments(self._worker_class, method, each_args, each_kwargs)
        # What cannot be called any more need not be encoded.
        self._check_alive()
        encoded = [self._encoded(method, *each) for each in calls]
        return self._begin(method, encoded, kind_of(self._worker_class, method))

    def _check_alive(self) -> None:
        shared = self._shared
        shared.session.messenger.check_process()
        shared.check_alive(self._chosen, of_members=self._selected is None)

    def _begin(self, method: str, encoded: list[Encoded], kind: CallKind) -> Any:
        """Call a method on the selected ranks, with the same arguments or with one set for each."""
        shared = self._shared
        session = shared.session
        targets = shared.targets(self._selected)
        arguments = encoded[0] if len(encoded) == 1 else encoded
        heads = [ValueCell() for _ in targets] if kind == "stream" else []
        call: Call
        if heads:
            again = CallAgain(shared.next_target)
            call = StreamCall(session.messenger, method, targets, arguments, heads, again)
        else:
            again = CallAgain(shared.next_target, repeats=self._retries, as_one=shared.are_one)
            call = Call(session.messenger, method, targets, arguments, kind, again)
        call.is_of_members, call.why_left = self._selected is None, shared.why_left
        reason_of_death = partial(shared.reason_of_death, call)
        result = self._result_of(call, reason_of_death, session.log_bus.flush)
        shared.begin(call, result)
        return GroupStream(call, result, heads) if isinstance(call, StreamCall) else result

    def _result_of(
        self,
        call: Call,
        reason_of_death: Callable[[WorkerAddress, float, str], str],
        before_return: Callable[[], object],
    ) -> GroupResult[Any]:
        return GroupResult(call, reason_of_death, before_return)

    def _encoded(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Encoded:
        try:
            return encode((args, kwargs))
        except CodecError as error:
            what = f"{self._name}.{method}()"
            raise unsendable(what, self._worker_class, method, args, kwargs, error) from error

    def health(self) -> list[RankHealth]:
        """How the selected ranks are, as this process knows: it asks nobody and does not wait."""
        return [self._shared.health(number) for number in self._chosen]

    def stack(self, within_s: float = WITHIN_S) -> list[RankStack]:
        r"""Where the selected ranks are: the stacks of their threads, also of one that is blocked, in C or otherwise.

            print(*group.stack(), sep="\n")

        Args:
            within_s: how long they may take to answer, in seconds.

        Raises:
            ClusterError: the job's driver does not answer.
        """
        shared = self._shared
        names = [str(shared.rank(number).address) for number in self._chosen]
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
        file = Path(path if path is not None else f"{self._name.replace('/', '-')}.speedscope.json")
        ranks = [shared.rank(number) for number in self._chosen]
        take = of_room("profiling.sampled:take_profile")
        take(shared.session.messenger, ranks, seconds, rate_hz, file)
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
        self._on((rank,))
        if rank not in self._chosen:
            raise PlacementError(f"restart({rank}): {self!r} is a view without that rank")
        self._shared.restart(rank, limit_s)

    def grow(
        self,
        num_workers: int | None = None,
        *,
        placement: PlacementStrategy | str | Mapping[str, Any] | None = None,
        reuse: bool = False,
        timeout_s: float = GROW_TIMEOUT_S,
        ready_when: Callable[[T], object] | str | None = None,
    ) -> tuple[int, ...]:
        """Start further ranks; returns when they are ready, and calls of the group go to them from then on.

        A class may have `on_resize(self, old, new)`, plain or `async def`, which its ranks run among their calls.
        One whose ranks run collectives must: they leave their process group there and meet in a new one, in which
        those that join are from their `__init__` on. `old` and `new` are `GroupMembers`; RANK, WORLD_SIZE, MASTER_ADDR
        and MASTER_PORT are those of `new` by then.

        Args:
            num_workers: how many, on free devices of the kind that its ranks have, or where fewest of its ranks run.
            placement: where instead, as a config or a launch says it; devices may be shared with other groups.
            reuse: take numbers again of ranks that have left; else no number is used twice.
            timeout_s: how long it may take, in seconds.
            ready_when: a method without arguments, or its name, that they run before they are called, to fetch the
                weights, say; None: what the launch said.

        Returns:
            Their numbers.

        Raises:
            ConfigError: an argument is not what is said above, or this is a view of some of the ranks.
            PlacementError: there is no place for them.
            DeviceHeld, NodeLost, LaunchError, LaunchTimeout: as of a launch; nothing has changed then.
            ResizeError: it cannot be; nothing has changed then, unless it says so.
            WorkerDied: the group has ended.
        """
        self._check_whole("grow()")
        limit_s, method = (
            checked_seconds("timeout_s", timeout_s),
            ready_method(self._worker_class, ready_when),
        )
        return self._shared.grow(Growth(num_workers, placement, bool(reuse), limit_s, method).checked())

    def shrink(
        self,
        num_workers: int | None = None,
        *,
        ranks: Sequence[int] | None = None,
        drain_s: float = DRAIN_S,
    ) -> tuple[int, ...]:
        """Let ranks leave: no call goes to them any more, what they have they finish, then they end.

        Args:
            num_workers: how many, the highest ones.
            ranks: these, instead.
            drain_s: how long they may take, in seconds; what has not finished then is ended by force. Those that stay
                have 30 s at least to run `on_resize`.

        Returns:
            Their numbers.

        Raises:
            ConfigError: an argument is not what is said above.
            PlacementError: the group has no such rank, or this is a view of some of the ranks.
            ResizeError: none would be left, or it cannot be; nothing has changed then, unless it says so.
            WorkerDied: the group has ended.
        """
        self._check_whole("shrink()")
        wanted = Shrinkage(num_workers, ranks, checked_seconds("drain_s", drain_s))
        return self._shared.shrink(wanted.checked())

    def terminate(self) -> None:
        """End every rank: after the call that it runs now, or after two seconds by force.

        Raises:
            PlacementError: this is a view of some of the ranks; only the whole group can be ended.
        """
        self._terminate()

    def _terminate(self) -> None:
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
        self._shutdown(timeout_s)

    def _shutdown(self, timeout_s: float | None) -> None:
        limit_s = checked_deadline(timeout_s)
        self._check_whole("shutdown()")
        self._shared.shutdown(limit_s)

    def _check_whole(self, what: str) -> None:
        if self._selected is not None and set(self._selected) != set(self._members.ranks):
            of = f"all {self._members.world_size} ranks of '{self._name}'"
            problem = f"{what} is for {of}, and this is a view of some"
            ranks = ", ".join(map(str, self._chosen))
            raise PlacementError(f"{problem} ({ranks}): call it on the group itself")

    def __enter__(self) -> Self:
        self._check_whole("`with`")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._shutdown(None)
        else:
            self._terminate()

    def __copy__(self) -> Self:
        view: Self = object.__new__(type(self))
        vars(view).update(vars(self))
        return view

    def __reduce__(self) -> tuple[Any, ...]:
        # Few groups are sent.
        from rlinf_scheduler.worker.remote_group import sent_group  # noqa: PLC0415

        self._shared.session.messenger.check_process()
        state = {name: value for name, value in vars(self).items() if name not in _OF_THE_PROCESS}
        kind = getattr(type(self), "_without_users", type(self))
        return sent_group, (kind, self._name, self._worker_class, state)

    def __getattr__(self, name: str) -> RemoteMethod:
        # Looked up only when this class has no such attribute: so it is a method of the user's class, or a mistake.
        if name.startswith("__") or "_worker_class" not in self.__dict__:
            raise AttributeError(name)
        check_method(self._worker_class, name)
        return RemoteMethod(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *public_methods(self._worker_class)})

    def __repr__(self) -> str:
        size = self._members.world_size
        which = "" if len(self._chosen) == size else f", ranks {list(self._chosen)}"
        return f"WorkerGroup({self._name!r}, {size} x {self._worker_class.__name__}{which})"


class ScatteredGroup(WorkerGroup[T]):
    """A view that `scatter` made: each rank is called with arguments of its own, then with those of the call."""

    _first: tuple[Arguments, ...]

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Arguments]:
        return [((*first, *args), {**named, **kwargs}) for first, named in self._first]


def group_of(calls: GroupCalls[Any], worker_class: type[T]) -> WorkerGroup[T]:
    """Return the group whose calls these are."""
    launched: Promise[GroupCalls[Any]] = Promise()
    launched.set_result(calls)
    return WorkerGroup(calls.name, worker_class, calls.members.world_size, launched)


@lru_cache(maxsize=256)
def _named_after(kind: Any, worker_class: Any) -> Any:
    """The class of groups of a worker class: `kind`, or one in which the methods of the worker class win."""
    ours = [each for each in kind.__mro__ if each.__module__.startswith(LIBRARY)]
    own = {name for each in ours for name in vars(each) if not name.startswith("_")}
    won = {name: _UsersMethod(name) for name in own if is_users_method(worker_class, name)}
    if not won:
        return kind
    return type(kind.__name__, (kind,), {"__doc__": kind.__doc__, "_without_users": kind, **won})
