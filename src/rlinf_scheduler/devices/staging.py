"""This process's buckets, from what is put into them until nobody reads it.

A block of the arena stands for each object on a device, another one for each bucket. So whoever reads holds a block, as
of any object in shared memory, and the arena says when nobody does: because it was released, or because who held it
is dead.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import compress

import msgspec

from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.codec.sources import BytePart, StridedTensor
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.serial_thread import SerialThread
from rlinf_scheduler.comm.shm.payload import frame_offsets
from rlinf_scheduler.comm.shm.payloads import WAIT_S
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.devices.driver import BucketMemory, DeviceDriver, DeviceUnusable
from rlinf_scheduler.devices.pool import BucketPool, bucket_bytes
from rlinf_scheduler.devices.records import RETIRE, BucketOpened, BucketRecord, OnDevice, Retire

# Of the memory of a device, by default.
SHARE = 4

_Number = tuple[str, int]  # of a bucket: its device and its number there


class DeviceBucket:
    """Memory on a device that this process fills, and others open.

    Attributes:
        payload: the block that stands for it; None once it is given up.
        readers: who was told of it, and still lives.
        was_given: whether anybody was ever told of it, and may have it open.
        at: where its block is.
        number: of the object in it; 0: none.
    """

    __slots__ = ("at", "memory", "number", "payload", "readers", "was_given")

    def __init__(self, memory: BucketMemory, payload: Payload) -> None:
        self.memory = memory
        self.payload: Payload | None = payload
        self.at = payload.descriptor
        self.number = 0
        self.readers: dict[str, Endpoint] = {}
        self.was_given = False


class StagedPayload:
    """An object whose large parts lie in a bucket; the bucket is taken until this and all readers are gone.

    Attributes:
        device: the UUID of the device.
        payload: what readers are sent.
        size_bytes: how large the object is.
    """

    __slots__ = ("_bucket", "_places", "_torch", "device", "payload", "size_bytes")

    def __init__(self, bucket: DeviceBucket, payload: Payload, where: OnDevice, encoded: Encoded) -> None:
        self.device = where.device
        self.payload = payload
        self.size_bytes = encoded.object_bytes
        self._bucket = bucket
        self._places = where.places
        self._torch = next(part._torch for part in encoded.parts if isinstance(part, StridedTensor))

    def goes_to(self, reader: Endpoint, devices: Sequence[str]) -> bool:
        """Whether a process that has these devices can read it there."""
        return self.device in devices and self.payload.goes_as_descriptor(reader)

    def given_to(self, reader: Endpoint) -> None:
        """A process is told of it."""
        self._bucket.was_given = True
        self._bucket.readers[reader.process_id] = reader

    def passed_on(self) -> None:
        """Whoever is told of it may tell others."""
        self._bucket.was_given = True

    def elsewhere(self) -> Encoded:
        """The object, to be copied to where processes without this device can read it."""
        others = iter(self.payload.bytes_frames()[1:])
        head = bytes(next(others))
        return Encoded(
            head, [next(others) if place is None else self._part(*place) for place in self._places]
        )

    def _part(self, offset: int, size_bytes: int) -> BytePart:
        return StridedTensor(self._torch, self._bucket.memory.bytes[offset : offset + size_bytes])


class Staging:
    """The buckets of this process. Everything is on the device thread.

    Args:
        thread: the device thread.
        limit_bytes: how much the buckets of one device take at most; None: a quarter of the device.
    """

    def __init__(self, messenger: Messenger, thread: SerialThread, limit_bytes: int | None) -> None:
        self._messenger = messenger
        self._thread = thread
        self._limit_bytes = limit_bytes
        self._pools: dict[str, BucketPool] = {}
        self._buckets: dict[_Number, DeviceBucket] = {}
        self._trimmed: set[str] = set()
        self._next_number = itertools.count(1).__next__
        # Said by the I/O thread: what nobody reads any more, and what nobody has open any more.
        self._unread: deque[_Number] = deque()
        self._unopened: deque[_Number] = deque()

    def stage(self, driver: DeviceDriver, device: str, encoded: Encoded, mark: object) -> StagedPayload:
        """Put what an object has on a device into a bucket there.

        Args:
            driver: of the device.
            device: its UUID.
            encoded: the object.
            mark: the copy comes after what was marked.

        Raises:
            DeviceUnusable: there is no room for it, on the device or in shared memory.
        """
        is_there = [_is_on(driver, device, part) for part in encoded.parts]
        there = list(compress(encoded.parts, is_there))
        offsets, size_bytes = frame_offsets([len(part) for part in there])
        number = self._take(driver, device, size_bytes)
        bucket = self._buckets[number]
        places = iter(zip(offsets, map(len, there), strict=True))
        bucket.number = self._next_number()
        where = OnDevice(
            device,
            _descriptor(bucket),
            tuple(next(places) if each else None for each in is_there),
            bucket.number,
            self._messenger.endpoint,
            self._messenger.name,
        )
        try:
            _copy(driver, bucket.memory, there, offsets, mark)
            others = [encoded.head, *compress(encoded.parts, map(operator.not_, is_there))]
            payload = self._in_arena(Encoded(where.to_frame(), others))
        except BaseException:
            self._idle(number)
            raise
        payload.when_free(partial(self._unread.append, number))
        return StagedPayload(bucket, payload, where, encoded)

    def memory_of(self, where: OnDevice) -> BucketMemory | None:
        """The memory of a bucket of this process; None if it was given up."""
        return next(
            (each.memory for each in self._buckets.values() if _descriptor(each) == where.bucket), None
        )

    def parts_of(self, where: OnDevice) -> Encoded | None:
        """What an object has in a bucket, after a head that says nothing; None if it is not there any more."""
        bucket = next((each for each in self._buckets.values() if each.number == where.number), None)
        if bucket is None:
            return None
        data, torch = bucket.memory.bytes, sys.modules["torch"]
        places = [place for place in where.places if place is not None]
        return Encoded(b"", [StridedTensor(torch, data[at : at + size]) for at, size in places])

    def opened(self, reader: BucketOpened) -> None:
        """A process has a bucket open."""
        for bucket in self._buckets.values():
            at = bucket.at
            if at is not None and (at.index, at.generation) == (reader.index, reader.generation):
                bucket.readers[reader.reader.process_id] = reader.reader
                if bucket.payload is None:
                    self._messenger.notify(reader.reader, RETIRE, Retire(reader.index, reader.generation))

    def close(self, driver: DeviceDriver) -> None:
        """Give back what nobody else has open; the rest goes with this process: others may not have closed it."""
        for number, bucket in list(self._buckets.items()):
            if not bucket.was_given:
                self._free(driver, number)

    def lose(self, process_id: str) -> None:
        """A process is gone: nobody tells it anything. Its block says whether it has closed what it had open."""
        for bucket in self._buckets.values():
            bucket.readers.pop(process_id, None)

    # -- buckets ---------------------------------------------------------------------------------

    def settle(self, driver: DeviceDriver) -> None:
        """See which buckets are idle now, and give back those that nobody has open any more."""
        while self._unread:
            number = self._unread.popleft()
            if number in self._buckets:
                self._idle(number)
        while self._unopened:
            number = self._unopened.popleft()
            self._pools[number[0]].gone(number[1])
            self._free(driver, number)

    def _idle(self, number: _Number) -> None:
        self._buckets[number].number = 0
        self._pools[number[0]].give_back(number[1])

    def _take(self, driver: DeviceDriver, device: str, size_bytes: int) -> _Number:
        self._messenger.payloads.see_released_now()
        self.settle(driver)
        pool = self._pools.get(device)
        if pool is None:
            limit_bytes = self._limit_bytes
            if limit_bytes is None:
                limit_bytes = driver.free_bytes(device)[1] // SHARE
            pool = self._pools[device] = BucketPool(limit_bytes)
        number = pool.take(size_bytes)
        return device, self._grow(driver, device, pool, size_bytes) if number is None else number

    def _grow(self, driver: DeviceDriver, device: str, pool: BucketPool, size_bytes: int) -> int:
        for number in pool.retire(size_bytes):
            self._retire(driver, (device, number))
        free_bytes, _ = driver.free_bytes(device)
        if not pool.may_grow(size_bytes, free_bytes) and device not in self._trimmed:
            # Once: torch pays for it when it wants that memory back.
            self._trimmed.add(device)
            driver.trim(device)
            free_bytes, _ = driver.free_bytes(device)
        if not pool.may_grow(size_bytes, free_bytes):
            raise DeviceUnusable(self._why_full(pool, device, size_bytes, free_bytes))
        memory = driver.allocate(device, bucket_bytes(size_bytes))
        try:
            record = BucketRecord(device, bucket_bytes(size_bytes), driver.handle(memory))
            payload = self._in_arena(Encoded(msgspec.msgpack.encode(record)))
        except BaseException:
            driver.free(memory)
            raise
        number = pool.add(size_bytes)
        self._buckets[device, number] = DeviceBucket(memory, payload)
        return number

    def _in_arena(self, encoded: Encoded) -> Payload:
        payload = self._messenger.payloads.pack_in_arena(encoded, WAIT_S)
        if payload is None:
            raise DeviceUnusable("this process has no shared memory to say where it lies, or no room there")
        return payload

    def _why_full(self, pool: BucketPool, device: str, size_bytes: int, free_bytes: int) -> str:
        there = [each.payload for each in self._buckets.values() if each.memory.device == device]
        pids = sorted({pid for payload in there if payload is not None for pid in payload.holders()})
        readers = f", opened by the processes {', '.join(map(str, pids))}" if pids else ""
        return (
            f"no room for {bucket_bytes(size_bytes) >> 20} MiB on {device}: {pool.num_taken} buckets are in use, all "
            f"take {pool.size_bytes >> 20} of {pool.limit_bytes >> 20} MiB{readers}, and {free_bytes >> 20} MiB of the "
            "device are free, of which half is left to others"
        )

    def _retire(self, driver: DeviceDriver, number: _Number) -> None:
        bucket = self._buckets[number]
        payload, bucket.payload = bucket.payload, None
        if not bucket.was_given or payload is None or payload.descriptor is None:
            self._pools[number[0]].gone(number[1])
            self._free(driver, number)
            return
        at = payload.descriptor
        payload.when_free(partial(self._is_unopened, driver, number))
        for reader in list(bucket.readers.values()):
            self._messenger.notify(reader, RETIRE, Retire(at.index, at.generation))

    def _is_unopened(self, driver: DeviceDriver, number: _Number) -> None:
        self._unopened.append(number)
        self._thread.put(partial(self.settle, driver))

    def _free(self, driver: DeviceDriver, number: _Number) -> None:
        bucket = self._buckets.pop(number)
        bucket.memory.bytes = None
        driver.free(bucket.memory)


def _is_on(driver: DeviceDriver, device: str, part: BytePart) -> bool:
    return isinstance(part, StridedTensor) and driver.device_of(part.tensor) == device


def _descriptor(bucket: DeviceBucket) -> bytes:
    at = None if bucket.payload is None else bucket.payload.descriptor
    return b"" if at is None else at.to_frame()


def _copy(
    driver: DeviceDriver,
    memory: BucketMemory,
    parts: Sequence[BytePart],
    offsets: Sequence[int],
    mark: object,
) -> None:
    with driver.copying(memory.device, mark):
        for part, offset in zip(parts, offsets, strict=True):
            tensor = part.tensor  # type: ignore[union-attr]
            target = memory.bytes[offset : offset + len(part)].view(tensor.dtype).view(tensor.shape)
            target.copy_(tensor, non_blocking=True)
