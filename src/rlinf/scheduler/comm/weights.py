"""Weights by name: one process publishes versions, any other copies the newest into tensors of its own."""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from rlinf.scheduler.comm.directory import DirectoryClient, Entry
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.framing import Buffer
from rlinf.scheduler.comm.handle import AsyncHandle
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.parcel import Arrived
from rlinf.scheduler.comm.parcels import SHARED_BYTES, Parcel
from rlinf.scheduler.comm.peer import Reply, complete
from rlinf.scheduler.comm.state_dicts import StateDictWriter, encode_state_dict
from rlinf.scheduler.comm.transfer import Transfer
from rlinf.scheduler.comm.weights_mirror import COPY, GONE, Mirrors
from rlinf.scheduler.comm.weights_shelf import AT, FETCH, IS, MIRROR, NO_VERSION, NOTHING_HEARD, Shelf
from rlinf.scheduler.errors import (
    CommError,
    CommTimeout,
    NameTaken,
    PeerDied,
    SharedMemoryUnreadable,
    WeightsError,
)

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S = 1800.0
# How long the I/O thread may take to do its part of a publication, and a publisher to answer who does not want to wait.
ANSWER_TIMEOUT_S = 30.0


class Weights:
    """Publishes weights of this process, and fetches those of others; at most one on a messenger.

    A publication writes the weights once, into shared memory where there is room, and stays until the next version
    replaces it. Readers of the same machine copy from there; of each other machine one reader gets the bytes and
    hands them on there in the same way. A version is never changed: who has begun to read it reads all of it,
    whatever is published meanwhile, and its memory is free when the last one has ended.

    Args:
        messenger: this process's messenger.
        directory: where publishers are found, as "weights/<name>".
    """

    def __init__(self, messenger: Messenger, directory: DirectoryClient) -> None:
        self._messenger = messenger
        self._directory = directory
        self._shelf = Shelf(messenger)
        self._mirrors = Mirrors(messenger)
        self._publishing = threading.Lock()
        self._claimed: set[str] = set()
        self._told: set[str] = set()

    def publish(self, name: str, state_dict: Mapping[str, Any], version: int) -> None:
        """Make a version the one that readers get from now on. It waits for no reader.

        Args:
            name: what the weights are called.
            state_dict: tensors (on any device) and arrays by key; they may be changed after this call.
            version: larger than the one before.

        Raises:
            WeightsError: the version does not grow, or something in the dict is neither tensor nor array.
            NameTaken: another living process publishes under that name.
            CommError: this process has left the cluster.
        """
        self._messenger.check_process()
        number = _checked_version(name, version)
        encoded = encode_state_dict(_checked_name(name), state_dict)
        with self._publishing:
            before = self._shelf.version(name)
            if number <= before:
                raise WeightsError(name, f"version {number} cannot follow version {before}: versions grow")
            self._claim(name)
            # Not `shared`: readers copy out of it and write nothing, so they need no private maps.
            parcel = self._messenger.parcels.pack(encoded, None, snapshot=True)
            if parcel.size_bytes >= SHARED_BYTES and not parcel.in_shared_memory:
                self._tell_once(name, parcel.size_bytes)
            self._put(name, number, parcel)

    def fetch(
        self, name: str, into: Any, *, min_version: int | None = None, timeout_s: float | None = None
    ) -> AsyncHandle[int]:
        """Copy the newest version into `into`; the handle's result is that version's number.

        The version is chosen when the publisher answers. It is copied by whoever waits for the handle, in that thread,
        even if `into` has that version already. Until then the version's memory stays in use.

        Args:
            name: what the weights are published as.
            into: a `torch.nn.Module`, or a dict of tensors and arrays: every value is overwritten in place and
                keeps its dtype and its device.
            min_version: wait until there is this version or a newer one; None: until there is any.
            timeout_s: how long, in seconds; None for DEFAULT_TIMEOUT_S, 0 for what is there now.

        Raises:
            WeightsError: `into` is no such thing (at once).
            WeightsMismatch: keys, shapes or dtypes do not fit; nothing was written (from the handle, like the others).
            PeerNotFound: nobody publishes under that name at the deadline.
            PeerDied: the publisher is gone; another may take over the name, and then be fetched from.
            CommTimeout: there was no such version at the deadline; it says which one was.
        """
        self._messenger.check_process()
        writer = StateDictWriter(_checked_name(name), into)
        wanted = NO_VERSION if min_version is None else _checked_version(name, min_version)
        limit_s = DEFAULT_TIMEOUT_S if timeout_s is None else max(0.0, timeout_s)
        fetch = _Fetch(self._messenger, self._mirrors, name, wanted, limit_s)

        def write(delivery: _Delivery) -> int:
            delivery.write(writer)
            return delivery.version

        return AsyncHandle(fetch.start(self._directory), write, f"fetch of weights '{name}'")

    def _claim(self, name: str) -> None:
        if name in self._claimed:
            return
        self._shelf.open(name)
        try:
            self._directory.register(_entry(name), self._messenger.endpoint)
        except NameTaken:
            self._shelf.withdraw(name)
            raise
        self._claimed.add(name)

    def _put(self, name: str, version: int, parcel: Parcel) -> None:
        if self._messenger.closed:
            raise WeightsError(name, "this process has left the cluster")
        done: Future[None] = Future()

        def put() -> None:
            self._shelf.put(name, version, parcel)
            complete(done)

        self._messenger.submit(put)
        try:
            done.result(ANSWER_TIMEOUT_S)
        except FutureTimeout as error:
            raise CommTimeout(
                "publish", _entry(name), ANSWER_TIMEOUT_S, "this process's I/O thread"
            ) from error

    def _tell_once(self, name: str, size_bytes: int) -> None:
        if name in self._told:
            return
        self._told.add(name)
        logger.warning(
            "no room in shared memory for the %d MiB of weights '%s': each reader gets them through a socket "
            "(RLINF_ARENA_MIB sets how much there may be)",
            size_bytes >> 20,
            name,
        )


class _Delivery:
    """A version that has come here, until it is written to where it should go."""

    __slots__ = ("_arrived", "version")

    def __init__(self, version: int, arrived: Arrived) -> None:
        self.version = version
        self._arrived: Arrived | None = arrived

    def write(self, writer: StateDictWriter) -> None:
        """Write it to its place and give its memory back; once."""
        arrived, self._arrived = self._arrived, None
        frames: list[Buffer] = [] if arrived is None else list(arrived.frames())
        try:
            writer.write(self.version, frames)
        finally:
            # An error keeps what its traceback refers to for as long as somebody keeps the error.
            del arrived
            frames.clear()


class _Fetch(Transfer):
    """One fetch under way; all of it happens on the I/O thread but its beginning.

    So whatever lies in shared memory is locked before its owner hears that the answer was taken.
    """

    def __init__(
        self, messenger: Messenger, mirrors: Mirrors, name: str, min_version: int, timeout_s: float
    ) -> None:
        super().__init__("fetch", _entry(name), timeout_s)
        self._messenger = messenger
        self._mirrors = mirrors
        self._name = name
        self._min_version = min_version
        self._publisher: Endpoint = messenger.endpoint
        self._heard = NOTHING_HEARD
        self._asked: Future[Reply] | None = None
        self._unreadable = ""

    def start(self, directory: DirectoryClient) -> Future[_Delivery]:
        """Begin; the future of its end, which ends the fetch when it is cancelled or dropped."""
        messenger = self._messenger
        future = self.new_weak_future(lambda: messenger.submit(self.release))
        future.add_done_callback(lambda done: messenger.submit(self.release) if done.cancelled() else None)
        self.look_up(directory, self._found, self._end)
        return future

    def release(self) -> None:
        """Give up what is under way."""
        super().release()
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.cancel()

    def _found(self, entry: Entry) -> None:
        self._publisher = entry.endpoint
        self._messenger.submit(self._begin)

    def _begin(self) -> None:
        if self.over():
            return
        # Who does not want to wait gets what is there, but the answer takes its time.
        left_s = max(0.0, self.timeout_s - self.waited_s()) if self.timeout_s else ANSWER_TIMEOUT_S
        self._timer = self._messenger.call_later(left_s, self._expire)
        self._ask()

    def _ask(self, *, avoid: tuple[str, int] = ("", NO_VERSION)) -> None:
        own = self._messenger.endpoint.to_wire()
        head = [self._name, self._min_version, self._heard, own, self._unreadable, avoid]
        self._asked = self._messenger.request(self._publisher, FETCH, head)
        self._asked.add_done_callback(self._on_answer)

    def _on_answer(self, answer: Future[Reply]) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if error is not None:
            self._end(_of_publisher(error, self.peer))
            return
        reply = answer.result()
        kind, version, *rest = reply.head
        if kind == MIRROR:
            # Others rely on it, whether this fetch is still wanted or not.
            self._mirrors.take(self._name, self._publisher, version, reply.frames)
        if self.over():
            return
        if kind == IS:
            self._on_heard(version)
        elif kind == AT:
            self._ask_mirror(Endpoint.from_wire(rest[0]), version)
        else:
            self._deliver(version, reply.frames, self._ask)

    def _on_heard(self, version: int) -> None:
        self._heard = version
        if self.timeout_s == 0 and version < self._min_version:
            self._expire()
        else:
            self._ask()

    def _ask_mirror(self, mirror: Endpoint, version: int) -> None:
        own = self._messenger.endpoint.to_wire()
        head = [self._name, self._publisher.process_id, version, own, self._unreadable]

        def answered(answer: Future[Reply]) -> None:
            if answer.cancelled() or self.over():
                return
            if answer.exception() is not None or answer.result().head[0] == GONE:
                self._unreadable = ""
                self._ask(avoid=(mirror.process_id, version))
            else:
                self._deliver(version, answer.result().frames, lambda: self._ask_mirror(mirror, version))

        self._asked = self._messenger.request(mirror, COPY, head)
        self._asked.add_done_callback(answered)

    def _deliver(self, version: int, frames: list[Buffer], ask_again: Callable[[], None]) -> None:
        try:
            arrived = self._messenger.parcels.receive(frames)
        except SharedMemoryUnreadable as error:
            if self._unreadable:
                self._end(error)
            else:
                # Whoever sent it sends bytes from now on.
                self._unreadable = error.reason
                ask_again()
            return
        if self.claim():
            self.complete(_Delivery(version, arrived))

    def _expire(self) -> None:
        if self._heard == NOTHING_HEARD:
            waiting_for = "its publisher's answer"
        else:
            there = "none" if self._heard == NO_VERSION else f"version {self._heard}"
            newer = self._heard < self._min_version or self._heard == NO_VERSION
            wanted = (
                f"version {self._min_version} or newer" if self._min_version != NO_VERSION else "any version"
            )
            waiting_for = f"{wanted}; {there} is published"
            if not newer:
                waiting_for += ", and on its way to this machine"
        self._end(self.timeout(waiting_for))

    def _end(self, error: BaseException) -> None:
        if self.claim():
            self.fail(error)


def _entry(name: str) -> str:
    """What a publisher is registered as."""
    return f"weights/{name}"


def _of_publisher(error: BaseException, entry: str) -> BaseException:
    """The error of a request to a publisher: a dead one is called by what it published."""
    if isinstance(error, PeerDied):
        return PeerDied(entry, f"published by '{error.peer}': {error.reason}")
    return error


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise CommError(f"weights have a name, a string that is not empty; it is {name!r}")
    return name


def _checked_version(name: str, version: int) -> int:
    try:
        number = operator.index(version)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise WeightsError(name, f"a version is a whole number from 0 to 2**63 - 1, not {version!r}")
    return number
