"""Ranks that share a device take turns on it: the driver gives them, and a process that dies gives its own back."""

from __future__ import annotations

import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec
from msgspec.structs import replace

from rlinf_scheduler.checks import FOREVER_S, explains_arguments
from rlinf_scheduler.comm import Request, RequestFuture
from rlinf_scheduler.comm.directory import Entry
from rlinf_scheduler.comm.loop import Timer
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.transfer import GRACE_FRACTION, checked_timeout
from rlinf_scheduler.comm.waits import DEVICE, Wait, awaited
from rlinf_scheduler.errors import CommTimeout, ConfigError, DeviceLockTimeout, PeerDied
from rlinf_scheduler.host.timing import Stopwatch
from rlinf_scheduler.observe.own_activity import OwnActivity
from rlinf_scheduler.observe.process_stats import Activity
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.membership import GroupMembers, GroupMembership
from rlinf_scheduler.worker.offload import Offload
from rlinf_scheduler.worker.turns import Turn, Turns

ASK = "devices.ask"
GIVE_BACK = "devices.give_back"
# How long after its deadline the word of the process that gives turns is waited for.
_GRACE_S = 1.0
# So often it is looked whether the ranks of a group live that have not asked for their part of a turn.
_MISSED_S = 0.5
# Who drops a turn says so, unless an interruption comes in between; then it is found after so long.
_SWEEP_S = 1.0
_next_number = itertools.count(1).__next__

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
W = TypeVar("W")


class AskTurn(msgspec.Struct, frozen=True, array_like=True):
    """A process wants some devices alone; the answer comes when it has them.

    Attributes:
        number: its own, to give them back by.
        devices: which.
        timeout_s: how long it waits for them, in seconds.
        group: the group all of whose ranks are to have theirs together; None: it has them alone.
    """

    number: int
    devices: tuple[str, ...]
    timeout_s: float
    group: GroupMembership | None = None


class GiveBack(msgspec.Struct, frozen=True, array_like=True):
    """A process needs its devices alone no more, or does not wait for them any more."""

    number: int


class DeviceLockServer:
    """Gives the turns of a job; a service of the job's home. Everything is on the I/O thread.

    Args:
        session: of the process that gives them.
    """

    def __init__(self, session: Session) -> None:
        self._messenger = messenger = session.messenger
        self._directory = session.directory
        self._turns = Turns()
        self._waiting: dict[tuple[str, int], tuple[Request, Timer]] = {}
        self._look_due = False
        messenger.serve(ASK, self._on_ask, AskTurn)
        messenger.serve(GIVE_BACK, self._on_give_back, GiveBack)
        messenger.on_peer_lost(self._on_peer_lost)
        self._members = session.members
        self._members.on_change.append(self._on_resized)
        session.service(OwnActivity).add(self._add_to)

    def _add_to(self, doing: Activity) -> Activity:
        return replace(doing, turns=tuple(self._turns.notes(time.monotonic())))

    def _on_ask(self, request: Request) -> None:
        wanted: AskTurn = request.head
        now, devices, group = time.monotonic(), frozenset(wanted.devices), wanted.group
        if group is not None:  # who asks may not have heard of a resize that was told here
            group = group._replace(members=self._members.newest(group.members))
        turn = Turn(request.peer_id, wanted.number, request.peer_name, devices, now, group)
        granted = self._turns.ask(turn)
        if turn.granted:
            request.reply(None)
            self._grant(granted)
            return
        timer = self._messenger.call_later(wanted.timeout_s, partial(self._expire, turn, wanted.devices))
        self._waiting[turn.process_id, turn.number] = request, timer
        self._look_later()

    def _expire(self, turn: Turn, devices: Sequence[str]) -> None:
        now = time.monotonic()
        holders = [_describe(other, now) for other in self._turns.before(turn)]
        holders += [f"'{name}' has not asked for its part" for name in self._turns.missing(turn)]
        self._refuse(turn, DeviceLockTimeout(devices, now - turn.since, holders))

    def _refuse(self, turn: Turn, error: BaseException) -> None:
        key = turn.process_id, turn.number
        request = self._stop_waiting(key)
        if request is not None:
            request.fail(error)
            self._grant(self._turns.give_back(*key, time.monotonic()))

    def _look_later(self) -> None:
        if self._turns.gathering and not self._look_due:
            self._look_due = True
            self._messenger.call_later(_MISSED_S, self._look_for_missing)

    def _look_for_missing(self) -> None:
        """Look whether the ranks can come that others of their groups wait for."""
        self._look_due = False
        for members, missing in self._turns.gathering:
            for name in missing:
                looked_up = self._directory.lookup_async(name, 0.0)
                looked_up.add_done_callback(partial(self._on_looked_up, members[0], name))
        self._look_later()

    def _on_looked_up(self, turn: Turn, name: str, looked_up: Promise[Entry]) -> None:
        error = looked_up.exception()
        if not isinstance(error, PeerDied):  # a name that another process is to take is not found, merely
            return
        for members, missing in self._turns.gathering:
            if turn in members and name in missing:
                for member in members:
                    self._refuse(member, error)

    def _on_give_back(self, notice: Request) -> None:
        key = notice.peer_id, notice.head.number
        self._stop_waiting(key)
        self._grant(self._turns.give_back(*key, time.monotonic()))

    def _on_resized(self, members: GroupMembers) -> None:
        self._grant(self._turns.resize(members, time.monotonic()))

    def _on_peer_lost(self, process_id: str) -> None:
        for key in [key for key in self._waiting if key[0] == process_id]:
            self._stop_waiting(key)
        self._grant(self._turns.forget(process_id, time.monotonic()))

    def _stop_waiting(self, key: tuple[str, int]) -> Request | None:
        request, timer = self._waiting.pop(key, (None, None))
        if timer is not None:
            timer.cancel()
        return request

    def _grant(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            request = self._stop_waiting((turn.process_id, turn.number))
            if request is not None:
                request.reply(None)


def _describe(turn: Turn, now: float) -> str:
    verb = "has them" if turn.granted else "comes first and has waited"
    return f"'{turn.who}' {verb} for {now - turn.since:.1f} s"


class _OwnTurn:
    """Stands for a turn of this process, asked for or had: it goes back when nobody has this object any more."""

    __slots__ = ("__weakref__",)


class _OwnTurnRef(weakref.ref[_OwnTurn]):
    """Refers to a turn; given a deque's `append` as its callback, it is in that deque once the turn is dropped.

    The interpreter puts it there itself: no interruption comes in between, as it may in a `__del__`.
    """

    __slots__ = ("number",)
    number: int


class _OwnTurns:
    """The turns of this process: those that were dropped are given back."""

    def __init__(self, session: Session) -> None:
        self._messenger = session.messenger
        self._desk = session.home
        self._dropped: deque[weakref.ref[_OwnTurn]] = deque()
        self._refs: set[_OwnTurnRef] = set()
        self._sweep_due = False

    def watch(self, turn: _OwnTurn) -> int:
        """Give it back as soon as `turn` is dropped; its number."""
        ref = _OwnTurnRef(turn, self._dropped.append)
        ref.number = _next_number()
        self._refs.add(ref)
        self._messenger.submit(self._sweep_later)
        return ref.number

    def ask(self, wanted: AskTurn) -> RequestFuture:
        """Ask for devices.

        It knows the turn by its number only: who keeps a traceback from in here does not keep the devices.
        """
        limit_s = min(FOREVER_S, wanted.timeout_s * (1 + GRACE_FRACTION) + _GRACE_S)
        return self._messenger.request(self._desk, ASK, wanted, timeout_s=limit_s, reply_type=None)

    def look(self) -> None:
        """Give back what was dropped, soon."""
        self._messenger.submit(self._drain)

    def _drain(self) -> None:
        while self._dropped:
            ref = self._dropped.popleft()
            if isinstance(ref, _OwnTurnRef):
                self._refs.discard(ref)
                self._messenger.notify(self._desk, GIVE_BACK, GiveBack(ref.number))

    def _sweep_later(self) -> None:
        if self._refs and not self._sweep_due:
            self._sweep_due = True
            self._messenger.call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Tell of turns that were dropped where an interruption kept their owner from it."""
        self._sweep_due = False
        self._drain()
        self._sweep_later()


def _awaits(local: dict[str, Any]) -> Wait:
    lock: DeviceLock = local["self"]
    devices = ", ".join(lock._devices)
    how = "group=True" if lock._group else ""
    operation = f"device_lock({how}) of {devices}"
    return Wait(DEVICE, operation, timeout_s=lock._timeout_s, subject=devices)


class DeviceLock:
    """A `with` block in which this worker has its devices alone, as far as others ask for them too.

    Args:
        session: this process's; None: it belongs to no job, and nobody shares its devices.
        devices: which devices; none: it waits for nobody.
        timeout_s: how long to wait for its turn, in seconds; None: as long as it takes.
        offload: what is on the devices in the block only.
        group: the group all of whose ranks are to have their devices together.
    """

    def __init__(
        self,
        session: Session | None,
        devices: Sequence[str],
        timeout_s: float | None = None,
        offload: Offload | None = None,
        group: GroupMembership | None = None,
    ) -> None:
        self._turns = None if session is None else session.service(_OwnTurns)
        self._devices = tuple(devices)
        self._timeout_s = checked_timeout(timeout_s)
        self._offload = offload
        self._group = group
        self._turn: _OwnTurn | None = None

    def __enter__(self) -> DeviceLock:
        """Wait for the turn, and bring to the device what is there in turns only.

        Raises:
            DeviceLockTimeout: others had the devices until the deadline, or a rank of the group did not ask for its
                part; the text says who.
            PeerDied: a rank of the group is gone.
            ConfigError: this block is entered already.
        """
        if self._turn is not None:
            raise ConfigError("this device_lock() is entered already: each `with` takes one of its own")
        self._take()
        if self._offload is not None:
            try:
                with Stopwatch("onload"):
                    self._offload.bring()
            except BaseException:
                self._drop()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._offload is not None:
                with Stopwatch("offload"):
                    self._offload.take_away()
        finally:
            self._drop()

    @awaited(_awaits)
    def _take(self) -> None:
        if self._turns is not None and (self._devices or self._group):
            self._turn = _OwnTurn()
            try:
                number = self._turns.watch(self._turn)
                self._turns.ask(AskTurn(number, self._devices, self._timeout_s, self._group)).result()
            except CommTimeout as error:
                self._drop()
                raise DeviceLockTimeout(self._devices, error.waited_s) from error
            except BaseException:
                self._drop()
                raise

    def _drop(self) -> None:
        self._turn = None
        if self._turns is not None:
            self._turns.look()


class _Uncalled(partial[Any]):
    """The method of a worker; in a `with` without parentheses it is called without arguments."""

    def __enter__(self) -> Any:
        self._entered: AbstractContextManager[Any] = self()
        return self._entered.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._entered.__exit__(*raised)


class BlockMethod(Protocol[P, R_co]):
    """A method of a worker that makes a block: `with self.method(...):` or, with no arguments, `with self.method:`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Make the block."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *raised: object) -> None: ...


class called_in_with(Generic[W, P, R_co]):  # noqa: N801 - a decorator
    """Decorates a method so that `with self.method:`, without parentheses, is `with self.method():`."""

    def __init__(self, method: Callable[Concatenate[W, P], R_co]) -> None:
        self._method = explains_arguments(method)
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, worker: None, _owner: type) -> Callable[Concatenate[W, P], R_co]: ...

    @overload
    def __get__(self, worker: W, _owner: type) -> BlockMethod[P, R_co]: ...

    def __get__(self, worker: W | None, _owner: type) -> Any:
        return self._method if worker is None else _Uncalled(self._method, worker)
