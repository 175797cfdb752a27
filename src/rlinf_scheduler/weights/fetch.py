"""The reader's side of weights: from a name to a version that has come here, from all that have some of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.locations import DeviceObjects, OpenedObject
from rlinf_scheduler.comm.operation import OperationPromise
from rlinf_scheduler.comm.peer import Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.replication import CarriedBy, Key, ReaderAnswer, Reading, Replicas, Want
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.transfer import Transfer, Transfers, end
from rlinf_scheduler.comm.waits import WEIGHTS, Cause, Wait
from rlinf_scheduler.errors import CommError, PeerDied, WeightsMismatch, WeightsReplaced
from rlinf_scheduler.weights.layout import WeightsLayout
from rlinf_scheduler.weights.records import (
    FETCH,
    FIND,
    NO_VERSION,
    FetchWeights,
    Find,
    FoundVersion,
    ReadVersion,
    Source,
    apart,
    entry_of,
)
from rlinf_scheduler.weights.sources import MemoryPlace, Sources, Way
from rlinf_scheduler.weights.stream import WholeTensors
from rlinf_scheduler.weights.target import TargetPlan, WeightsTarget

DeviceRead: TypeAlias = Callable[[OpenedObject, Callable[[], None]], None]

# How long all the answers may take together that a fetch needs which does not want to wait.
ANSWER_TIMEOUT_S = 30.0
# A publisher that says that a version is over has told the index before, unless both do so all the time.
ASK_AGAIN_S = 0.01
# Of layouts that are larger, packed, or of more tensors, a plan is made beside the I/O thread.
PLANNED_HERE_BYTES, PLANNED_HERE_TENSORS = 1 << 14, 256


class Arrival(NamedTuple):
    """The shards of one source that have come here: their bytes, which they are, how, and where, if it is a device."""

    payload: ReceivedPayload
    layout: WeightsLayout
    carrier: CarriedBy
    use: OpenedObject | None = None

    def way(self, planned: Way) -> Way:
        """Return by which way they have come; a device could not be opened, perhaps."""
        return "node" if planned == "device" and self.use is None else planned


class FetchedWeights:
    """A version that has come here, until it is written to where it should go.

    Attributes:
        read: how much of it was read from whom.
    """

    __slots__ = ("_arrived", "_plan", "_read", "_unfit", "read", "version")

    def __init__(
        self, found: FoundVersion, plan: TargetPlan, arrived: Mapping[int, Arrival], read: DeviceRead
    ) -> None:
        self.version = found.version
        flows = tuple(
            (found.sources[each.source].process, each.num_bytes, arrived[each.source].way(each.way))
            for each in plan.flows
        )
        self.read = ReadVersion(
            found.version, flows, tuple(arrived[each.source].carrier for each in plan.flows)
        )
        self._plan = plan
        self._arrived: Mapping[int, Arrival] | None = arrived
        self._read = read
        self._unfit: tuple[Any, ...] | None = None

    def write(self, target: WeightsTarget | WholeTensors) -> int:
        """Write it to its place and give its memory back; the version.

        An interruption (Ctrl-C, a signal handler that raises) does not leave a part of it there: it is written as a
        whole before that is raised, unless another interruption comes. It may be called again after either, and after
        its end, and then ends as it did.

        Raises:
            WeightsMismatch: it does not fit; nothing was written.
        """
        if self._unfit is not None:
            raise WeightsMismatch(*self._unfit)
        if self._arrived is None:
            return self.version
        try:
            self._write(target, self._arrived)
        except WeightsMismatch as error:
            self._unfit = error.args
            self._arrived = None
            raise
        except CommError:  # the device did nothing for minutes: it would not now
            raise
        except BaseException:
            self._write(target, self._arrived)
            raise
        self._arrived = None
        return self.version

    def _write(self, target: WeightsTarget | WholeTensors, arrived: Mapping[int, Arrival]) -> None:
        frames: dict[int, Sequence[Any]] = {
            number: each.payload.frames() if each.use is None else each.use.frames(each.payload.frames())
            for number, each in arrived.items()
        }
        on_device = {
            number: partial(self._read, each.use) for number, each in arrived.items() if each.use is not None
        }
        try:
            target.write(self.version, self._plan, frames, on_device)
        finally:
            # An error keeps what its traceback refers to for as long as somebody keeps the error.
            del arrived
            frames.clear()
            on_device.clear()


@dataclass(slots=True)
class KnownLayouts:
    """What a process knows of the layouts of weights.

    Attributes:
        made: where the sources were the last time, and the layouts of these as one.
        launch: of the group whose version was fetched last; 0 if none was, or its reader was told that it is over.
    """

    digest: bytes = b""
    layouts: Sequence[WeightsLayout] = ()
    made: tuple[tuple[tuple[int, MemoryPlace], ...], Sources] | None = None
    launch: int = 0

    def sources(self, found: FoundVersion) -> Sources:
        """Return the layouts of a version as one, the same object as before where nothing has changed."""
        places = tuple(
            (each.layout, MemoryPlace(each.endpoint.machine_id, each.device)) for each in found.sources
        )
        made = self.made
        if made is None or made[0] != places:
            layouts = [self.layouts[number] for number, _ in places]
            self.made = made = places, Sources(layouts, [place for _, place in places])
        return made[1]


@dataclass(slots=True)
class Readers:
    """What the fetches of a process, one `number` of the `count` of its group, have in common."""

    transfers: Transfers
    replicas: Replicas
    devices: DeviceObjects
    home: Endpoint
    number: int = 0
    count: int = 1
    known: dict[str, KnownLayouts] = field(default_factory=dict)


class Fetch(Transfer):
    """One fetch under way; all of it is on the I/O thread but its beginning. A `timeout_s` of 0 takes what is there."""

    def __init__(
        self,
        readers: Readers,
        target: WeightsTarget | WholeTensors,
        name: str,
        min_version: int,
        timeout_s: float,
        *,
        exact: bool = False,
    ) -> None:
        super().__init__(readers.transfers, "fetch", entry_of(name), timeout_s)
        self._readers = readers
        self._devices = readers.devices
        self._target = target
        self._into = self._devices.of(target.tensors)
        self._name = name
        self._min_version = min_version
        self._exact = exact
        self._waits = timeout_s > 0
        self._asked: Promise[Reply] | None = None  # the index
        self._known = KnownLayouts()
        self._answer: FoundVersion | None = None
        self._plan: TargetPlan | None = None
        self._readings: dict[int, Reading] = {}
        # Sources that have said that theirs is on its way.
        self._heard: set[int] = set()
        self._arrived: dict[int, Arrival] = {}
        self._lost: dict[str, PeerDied] = {}
        self._was_over = False

    def begin(self) -> OperationPromise:
        """Hand it over to the I/O thread; the promise of its `FetchedWeights`, which ends it when it is dropped."""
        promise = OperationPromise(self, is_watched=True)
        self.promise_to(promise, deque(maxlen=0))  # it hears by itself that nobody has it
        self._transfers.hand_over(self._begin, self._fail)
        return promise

    def awaits(self) -> Wait:
        """Return what a wait for it is for; in any thread."""
        needs = self._min_version if self._min_version != NO_VERSION else -1
        option = "version" if self._exact else "min_version"
        text = f"{self._target.call}('{self._name}'{f', {option}={needs}' if needs >= 0 else ''})"
        return replace(
            super().awaits(), kind=WEIGHTS, operation=text, peers=(), subject=self._name, needs=needs
        )

    def cause(self) -> Cause:
        """Return the cause under which a wait for it is counted."""
        return Cause(WEIGHTS, "fetch_weights", self._name)

    def _begin(self) -> None:
        if self.is_awaited:
            self.start()

    def start(self) -> None:
        """Begin: at the deadline it ends, and the index is asked."""
        self._transfers.under_way.add(self)
        # It gets what is there, but the answers take their time.
        self.arm(None if self._waits else ANSWER_TIMEOUT_S)
        self._ask()

    def found(self, endpoint: Endpoint) -> None:
        """Nothing is looked up in the directory."""

    def expire(self) -> None:
        """The deadline has passed."""
        if self._answer is None and self._waits and not self._is_late:
            # The index has the same deadline, and knows better what there is instead.
            self._is_late = True
            self.soon(self.expire)
        else:
            self.end(error=self.timeout(self._what_is_missing()))

    def ended(self, value: Any, error: BaseException | None) -> None:
        """It is over: give back what it holds, and tell its caller."""
        if self._asked is not None:
            self._asked.cancel()
        self._stop_reading()
        promise = self.find_promise()
        if promise is not None:
            sources = self._answer.sources if self._answer is not None else ()
            promise.by = sources[self._plan.needed[0]].process if self._plan and self._plan.needed else ""
            end(promise, value, error)

    def give_up(self) -> None:
        """End it: nobody wants what it brings."""
        self.end(error=CancelledError())

    def gone(self) -> None:
        """Give it up, unless it is over."""
        if not self.over:
            self._messenger.submit(self.give_up)

    # -- the index -------------------------------------------------------------------------------

    def _ask(self) -> None:
        if self.over:
            return
        left_s = max(0.0, self.timeout_s - self.waited_s) if self._waits else 0.0
        self._known = self._readers.known.get(self._name) or KnownLayouts()
        digest = self._known.digest
        question = Find(
            self._name, self._min_version, self._exact, left_s, digest, tuple(self._lost), self._known.launch
        )
        self._asked = self._messenger.request(self._readers.home, FIND, question, reply_type=FoundVersion)
        self._asked.add_done_callback(self._answered)

    def _ask_again(self) -> None:
        """Begin anew: a source has gone, or does not have the version any more."""
        self._stop_reading()
        self._plan = self._answer = None
        self._arrived.clear()
        self._messenger.call_later(ASK_AGAIN_S if self._was_over else 0.0, self._ask)
        self._was_over = True

    def _answered(self, reply: Promise[Reply]) -> None:
        if self.over or reply.cancelled():
            return
        error = reply.exception()
        if isinstance(error, PeerDied) and self._lost:
            error = list(self._lost.values())[-1]
        if isinstance(error, WeightsReplaced):
            self._known.launch = 0  # it is told once, and then means numbers of the present launch
        if error is not None:
            self.end(error=error)
            return
        self._answer = reply.result().head
        if self._answer.sources:
            self._make_plan(self._answer)
        else:
            self.end(error=self.timeout(self._what_is_missing()))

    def _make_plan(self, found: FoundVersion) -> None:
        here = self._messenger.endpoint.machine_id
        place = MemoryPlace(here, self._into[0] if self._into else "")

        def make() -> TargetPlan:
            readers = self._readers
            if found.layouts is not None:
                self._known = readers.known[self._name] = KnownLayouts(
                    found.digest, apart(found.layouts), launch=self._known.launch
                )
            sources = self._known.sources(found)
            return self._target.plan(found.version, sources, place, readers.number, readers.count)

        made: Promise[TargetPlan] = Promise()
        if self._is_small(found):
            made.set_from(make)
            self._planned(found, made)
            return

        def make_beside() -> None:
            made.set_from(make)
            self._messenger.submit(partial(self._planned, found, made))

        self._messenger.run_beside(make_beside)

    def _is_small(self, found: FoundVersion) -> bool:
        """Whether a plan is made in no time."""
        if found.layouts is not None:
            return sum(map(len, found.layouts.pieces)) <= PLANNED_HERE_BYTES
        return self._known.made is not None and len(self._known.made[1].dtypes) <= PLANNED_HERE_TENSORS

    def _planned(self, found: FoundVersion, made: Promise[TargetPlan]) -> None:
        error = made.exception()
        if error is not None:
            self.end(error=error)
        elif not self.over:
            self._read(found, made.result())

    # -- the sources -----------------------------------------------------------------------------

    def _read(self, found: FoundVersion, plan: TargetPlan) -> None:
        self._plan = plan
        self._heard.clear()
        for number in plan.needed:
            self._begin_reading(found, number)
        self._end_if_all_is_here()

    def _begin_reading(self, found: FoundVersion, number: int) -> None:
        source = found.sources[number]
        self.process_id = source.endpoint.process_id
        reading = self._readings[number] = Reading(
            self._messenger,
            self._readers.replicas,
            source.endpoint,
            ask=partial(self._ask_source, source, found.version),
            done=partial(self._on_read, found, number),
            heard=lambda _there: self._heard.add(number),
        )
        reading.start()

    def _stop_reading(self) -> None:
        for reading in self._readings.values():
            reading.stop()
        self._readings.clear()

    def _ask_source(self, source: Source, version: int, want: Want) -> Promise[Reply]:
        devices = self._devices.readable_from(source.endpoint.process_id, self._into)
        question = FetchWeights(self._name, version, want, devices, source.of)
        return self._messenger.request(source.endpoint, FETCH, question, reply_type=ReaderAnswer)

    def _on_read(
        self,
        found: FoundVersion,
        number: int,
        _key: Key | None,
        arrived: ReceivedPayload | None,
        error: BaseException | None,
    ) -> None:
        if self.over:
            return
        source = found.sources[number]
        if arrived is not None and self._devices.is_staged(arrived.frames()):
            opened = partial(self._opened, found, number, arrived)
            self._devices.open(f"weights '{self._name}'", arrived, opened)
        elif arrived is not None:
            self._take(found, number, arrived)
        elif isinstance(error, PeerDied):
            reason = f"published by '{source.process}': {error.reason}"
            self._lost[source.endpoint.process_id] = PeerDied(self.peer, reason)
            self._ask_again()
        elif error is None:
            self._ask_again()
        else:
            self.end(error=error)

    def _opened(
        self, found: FoundVersion, number: int, arrived: ReceivedPayload, use: OpenedObject | None
    ) -> None:
        if self.over or self._answer is not found:
            return
        if use is None:
            # From now on this process asks for bytes.
            self._begin_reading(found, number)
        else:
            self._take(found, number, arrived, use)

    def _take(
        self, found: FoundVersion, number: int, arrived: ReceivedPayload, use: OpenedObject | None = None
    ) -> None:
        layout = self._known.layouts[found.sources[number].layout]
        carrier = CarriedBy("device memory") if use else self._readings[number].carrier
        self._arrived[number] = Arrival(arrived, layout, carrier, use)
        del self._readings[number]
        self._end_if_all_is_here()

    def _end_if_all_is_here(self) -> None:
        if self._plan is None or self._answer is None or self.over:
            return
        if len(self._arrived) == len(self._plan.needed):
            read = partial(self._devices.read, f"weights '{self._name}'")
            arrived, self._arrived = self._arrived, {}
            self._known.launch = self._answer.launch
            self.end(FetchedWeights(self._answer, self._plan, arrived, read))

    def _what_is_missing(self) -> str:
        if self._answer is None:
            return "the answer of the job's home"
        silent = [number for number in self._readings if number not in self._heard]
        if silent:
            source = self._answer.sources[silent[0]]
            return (
                "its publisher's answer"
                if len(self._answer.sources) == 1
                else f"the answer of '{source.process}'"
            )
        version = self._answer.version
        there = "none" if version == NO_VERSION else f"version {version}"
        wanted = "any version" if self._min_version == NO_VERSION else f"version {self._min_version}"
        or_newer = "" if self._exact or self._min_version == NO_VERSION else " or newer"
        coming = ", and on its way to this machine, or waits for its turn" if self._readings else ""
        lacks = f"; {self._answer.lacks}" if self._answer.lacks else ""
        return f"{wanted}{or_newer}; {there} is published{coming}{lacks}"
