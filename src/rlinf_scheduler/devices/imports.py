"""The buckets of other processes that are open here. Everything is on the device thread, but that a use is dropped."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.promise import Wake
from rlinf_scheduler.comm.serial_thread import SerialThread
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.shm.sent_payload import Descriptor
from rlinf_scheduler.devices.driver import BucketMemory, DeviceDriver, DeviceUnusable
from rlinf_scheduler.devices.open_buckets import BucketKey, OpenBuckets
from rlinf_scheduler.devices.records import OPENED, BucketOpened, BucketRecord, OnDevice
from rlinf_scheduler.errors import SharedMemoryUnreadable


class BucketUse:
    """The use of a bucket that is open; when it is dropped, the bucket may be closed.

    Attributes:
        memory: the bucket.
        places: where the parts of the object lie in it (see `OnDevice`).
        holds: the object, so that it stays there as long as something is copied from it.
    """

    __slots__ = ("__weakref__", "_wake", "holds", "memory", "places")

    def __init__(self, memory: BucketMemory, where: OnDevice, wake: Wake | None) -> None:
        self.memory = memory
        self.places = where.places
        self.holds: ReceivedPayload | None = None
        self._wake = wake

    def frames(self, frames: Sequence[Buffer]) -> list[Any]:
        """The frames of the object, its parts on the device as tensors of bytes there.

        Args:
            frames: those that were sent.
        """
        others = iter(frames[1:])
        head = next(others)
        data = self.memory.bytes
        return [head, *(next(others) if at is None else data[at[0] : at[0] + at[1]] for at in self.places)]


class UseRef(weakref.ref[BucketUse]):
    """Stands for a use; given a deque's `append` as its callback, it is in there once the use is dropped."""

    __slots__ = ("key",)
    key: BucketKey


class BucketImports:
    """Opens the buckets of others, once each, and closes them.

    Args:
        thread: the device thread.
    """

    def __init__(self, messenger: Messenger, thread: SerialThread) -> None:
        self._messenger = messenger
        self._payloads = messenger.payloads
        self._thread = thread
        self._buckets = OpenBuckets()
        # With what holds the block that stands for the bucket.
        self._open: dict[BucketKey, tuple[DeviceDriver, BucketMemory, ReceivedPayload]] = {}
        self._refs: set[UseRef] = set()
        self._dropped: deque[weakref.ref[BucketUse]] = deque()

    def use(self, driver: DeviceDriver, where: OnDevice) -> BucketUse:
        """The use of a bucket of another process, for which somebody vouches who holds an object in it.

        Raises:
            DeviceUnusable: it cannot be opened here.
        """
        self.sweep()
        at = Descriptor.from_frame(where.bucket)
        key = BucketKey(at.owner_id, at.index, at.generation)
        if key not in self._buckets:
            self._open[key] = self._opened(driver, where)
            self._buckets.opened(key)
            # So each hears of the other's end, too.
            told = BucketOpened(at.index, at.generation, self._messenger.endpoint)
            self._messenger.notify(where.owner, OPENED, told)
        self._buckets.begin(key)
        use = BucketUse(self._open[key][1], where, Wake(self._on_drop))
        ref = UseRef(use, self._dropped.append)
        ref.key = key
        self._refs.add(ref)
        return use

    def retire(self, key: BucketKey) -> None:
        """A bucket's owner gives it up."""
        self.sweep()
        if self._buckets.retire(key):
            self._close(key)

    def lose(self, owner_id: str) -> None:
        """A process is gone."""
        self.sweep()
        for key in self._buckets.lose(owner_id):
            self._close(key)

    def close(self) -> bool:
        """Close all that nobody uses, and the others as soon as that is over; whether all are closed."""
        for owner_id in {key.owner_id for key in self._open}:
            self.lose(owner_id)
        return not self._open

    def sweep(self) -> None:
        """Close what was kept only for those who have dropped it."""
        if self._dropped:
            # What they had read, too: its owner can fill its bucket again at once.
            self._payloads.release_dropped_soon()
        while self._dropped:
            ref = self._dropped.popleft()
            if isinstance(ref, UseRef):
                self._refs.discard(ref)
                if self._buckets.end(ref.key):
                    self._close(ref.key)

    def __len__(self) -> int:
        return len(self._open)

    def _on_drop(self) -> None:
        self._thread.put(self.sweep)

    def _opened(
        self, driver: DeviceDriver, where: OnDevice
    ) -> tuple[DeviceDriver, BucketMemory, ReceivedPayload]:
        try:
            arrived = self._payloads.receive([where.bucket])
            record = msgspec.msgpack.decode(arrived.frames()[0], type=BucketRecord)
        except (SharedMemoryUnreadable, ValueError) as error:
            raise DeviceUnusable(f"what says how it is opened cannot be read: {error}") from error
        return driver, driver.open(record.device, record.size_bytes, record.handle), arrived

    def _close(self, key: BucketKey) -> None:
        driver, memory, _arrived = self._open.pop(key)
        memory.bytes = None
        driver.close(memory)
