"""The reader's side of weights: from a name to a version that has come here."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, TypeAlias

from msgspec.structs import replace

from rlinf_scheduler.comm.device import Devices
from rlinf_scheduler.comm.device.imports import BucketUse
from rlinf_scheduler.comm.device.records import is_staged
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.peer import Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.replication import NOTHING_HEARD, Key, ReaderAnswer, Reading, Replicas, Want
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.transfer import OwnedPromise, Transfer, Transfers, end
from rlinf_scheduler.comm.waits import WEIGHTS, Cause, Wait
from rlinf_scheduler.errors import CommError, PeerDied, WeightsMismatch
from rlinf_scheduler.weights.records import FETCH, NO_VERSION, FetchWeights
from rlinf_scheduler.weights.sources import Place
from rlinf_scheduler.weights.target import Target, sources_of

DeviceRead: TypeAlias = Callable[[BucketUse, Callable[[], None]], None]

# How long a publisher may take to answer who does not want to wait.
ANSWER_TIMEOUT_S = 30.0


class FetchedWeights:
    """A version that has come here, until it is written to where it should go.

    Attributes:
        version: which one.
    """

    __slots__ = ("_arrived", "_read", "_unfit", "_use", "version")

    def __init__(
        self, version: int, arrived: ReceivedPayload, use: BucketUse | None, read: DeviceRead
    ) -> None:
        self.version = version
        self._arrived: ReceivedPayload | None = arrived
        self._use = use
        self._read = read
        self._unfit: tuple[Any, ...] | None = None

    def frames(self) -> list[Buffer]:
        """Its bytes, to be noted; nothing once it was written."""
        return [] if self._arrived is None else list(self._arrived.frames())

    def write(self, target: Target) -> int:
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
            self._arrived = self._use = None
            raise
        except CommError:  # the device did nothing for minutes: it would not now
            raise
        except BaseException:
            self._write(target, self._arrived)
            raise
        self._arrived = self._use = None
        return self.version

    def _write(self, target: Target, arrived: ReceivedPayload) -> None:
        frames: list[Any] = list(arrived.frames())
        try:
            on_device = None
            if self._use is not None:
                frames = self._use.frames(frames)
                on_device = {0: partial(self._read, self._use)}
            plan = target.plan(self.version, sources_of(frames), Place(""))
            target.write(self.version, plan, {0: frames}, on_device)
        finally:
            # An error keeps what its traceback refers to for as long as somebody keeps the error.
            del arrived
            frames.clear()


class Fetch(Transfer):
    """One fetch under way; all of it is on the I/O thread but its beginning.

    Args:
        transfers: where fetches are under way.
        replicas: keeps what this process is to hand on to others of its machine.
        devices: what this process shares on devices.
        into: the devices on which it is written to.
        name: what the weights are published as.
        min_version: the least version that will do; NO_VERSION if any does.
        timeout_s: how long it may take; 0 for what is there now.
        exact: only `min_version` itself will do.
    """

    def __init__(
        self,
        transfers: Transfers,
        replicas: Replicas,
        devices: Devices,
        into: tuple[str, ...],
        name: str,
        min_version: int,
        timeout_s: float,
        *,
        exact: bool = False,
    ) -> None:
        super().__init__(transfers, "fetch", entry_of(name), timeout_s)
        self._exact = exact
        self._replicas = replicas
        self._devices = devices
        self._into = into
        self._name = name
        self._min_version = min_version
        self._waits = timeout_s > 0
        self._heard = NOTHING_HEARD
        self._reading: Reading | None = None
        self._publisher = ""
        self._promise: Callable[[], OwnedPromise | None] = lambda: None

    def begin(self) -> OwnedPromise:
        """Hand it over to the I/O thread; the promise of its `FetchedWeights`, which ends it when it is dropped."""
        cause = Cause(WEIGHTS, "fetch_weights", self._name)
        promise = OwnedPromise(self._messenger, self._give_up, self._on_dropped, self.awaits, cause)
        self._promise = weakref.ref(promise)
        self._transfers.hand_over(self._begin, self._fail)
        return promise

    def awaits(self) -> Wait:
        """What a wait for it is for; from any thread."""
        needs = self._min_version if self._min_version != NO_VERSION else -1
        option = "version" if self._exact else "min_version"
        text = f"fetch_weights('{self._name}'{f', {option}={needs}' if needs >= 0 else ''})"
        return replace(
            super().awaits(), kind=WEIGHTS, operation=text, peers=(), subject=self._name, needs=needs
        )

    def _begin(self) -> None:
        if self._promise() is not None:
            self.start()

    def found(self, endpoint: Endpoint) -> None:
        """The peer is there."""
        self._publisher = self._messenger.peer_name(endpoint.process_id)
        self._from = endpoint
        if not self._waits:
            # It gets what is there, but the answer takes its time.
            self.arm(ANSWER_TIMEOUT_S)
        self._begin_reading(endpoint)

    def _begin_reading(self, endpoint: Endpoint) -> None:
        self._reading = Reading(
            self._messenger,
            self._replicas,
            endpoint,
            ask=partial(self._ask, endpoint),
            done=self._done,
            heard=self._on_heard,
        )
        self._reading.start()

    def expire(self) -> None:
        """The deadline has passed, and the peer is there."""
        self.end(error=self.timeout(self._what_is_missing()))

    def ended(self, value: Any, error: BaseException | None) -> None:
        """It is over: give back what it holds, and tell its caller."""
        if self._reading is not None:
            self._reading.stop()
        promise = self._promise()
        if promise is not None:
            promise.by = self._publisher
            end(promise, value, error)

    def _give_up(self) -> None:
        self.end(error=CancelledError())

    def _on_dropped(self) -> None:
        if not self.over:
            self._messenger.submit(self._give_up)

    def _ask(self, publisher: Endpoint, want: Want) -> Promise[Reply]:
        devices = self._devices.readable_from(publisher.process_id, self._into)
        question = FetchWeights(self._name, self._min_version, want, devices, self._exact)
        return self._messenger.request(publisher, FETCH, question, reply_type=ReaderAnswer)

    def _on_heard(self, there: Key) -> None:
        self._heard = there.number
        if not self._waits and (there.number == NO_VERSION or there.number < self._min_version):
            self.expire()

    def _done(self, key: Key | None, arrived: ReceivedPayload | None, error: BaseException | None) -> None:
        if key is not None and arrived is not None:
            if is_staged(arrived.frames()):
                opened = partial(self._opened, key, arrived)
                self._devices.open(f"weights '{self._name}'", arrived, opened)
            else:
                self._arrived(key, arrived, None)
        elif isinstance(error, PeerDied):
            self.end(error=PeerDied(self.peer, f"published by '{error.peer}': {error.reason}"))
        else:
            self.end(error=error)

    def _opened(self, key: Key, arrived: ReceivedPayload, use: BucketUse | None) -> None:
        if self.over:
            return
        if use is None:
            # From now on this process asks for bytes.
            self._begin_reading(self._from)
        else:
            self._arrived(key, arrived, use)

    def _arrived(self, key: Key, arrived: ReceivedPayload, use: BucketUse | None) -> None:
        read = partial(self._devices.read, f"weights '{self._name}'")
        self.end(FetchedWeights(key.number, arrived, use, read))

    def _what_is_missing(self) -> str:
        if self._heard == NOTHING_HEARD:
            return "its publisher's answer"
        there = "none" if self._heard == NO_VERSION else f"version {self._heard}"
        or_newer = "" if self._exact else " or newer"
        wanted = (
            "any version" if self._min_version == NO_VERSION else f"version {self._min_version}{or_newer}"
        )
        newer = self._heard < self._min_version or self._heard == NO_VERSION
        coming = "" if newer else ", and on its way to this machine, or waits for its turn"
        return f"{wanted}; {there} is published{coming}"


def entry_of(name: str) -> str:
    """Return the name under which a publisher is registered."""
    return f"weights/{name}"
