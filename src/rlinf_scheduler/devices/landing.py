"""Objects that lie in buckets of other processes, on their way to their takers: there, or through host memory.

What was sent of such an object is its head and the parts that are on no device. The rest is copied out of the bucket by
its taker, on the device; or, where this process has not that device, by the bucket's owner, when it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rlinf_scheduler.comm.codec import decode
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.devices.devices import COPY_TIMEOUT_S, Devices
from rlinf_scheduler.devices.imports import BucketUse
from rlinf_scheduler.devices.records import READ, OnDevice, ReadOut, ReadStaged, is_staged
from rlinf_scheduler.errors import CodecError, CommError, CommTimeout, SharedMemoryUnreadable


class ReceivedDevicePayload(ReceivedPayload):
    """An object that can be loaded: its bucket is open here, or its parts have come through host memory.

    What is loaded shares no memory with what was sent, so that the bucket is free again when this is dropped.

    Args:
        what: it, for messages.
        sent: what was sent.
        where: where its parts lie.
        source: its bucket, and who copies out of it; or its parts; or why it can never be loaded.
    """

    __slots__ = ("_sent", "_source", "_what", "_where")

    def __init__(
        self,
        what: str,
        sent: ReceivedPayload,
        where: OnDevice,
        source: tuple[Devices, BucketUse] | ReceivedPayload | str,
    ) -> None:
        super().__init__([], sent.block, sent.sizes)
        self._what = what
        self._sent = sent
        self._where = where
        self._source = source

    @property
    def size_bytes(self) -> int:
        """How large it is, wherever its parts lie."""
        return self._sent.size_bytes + sum(place[1] for place in self._where.places if place is not None)

    def frames(self) -> list[Buffer]:
        """Its frames, if its parts came through host memory.

        Raises:
            CodecError: its parts cannot be had, for good.
        """
        if isinstance(self._source, str):
            raise CodecError(self._source)
        if not isinstance(self._source, ReceivedPayload):
            return self._sent.frames()
        parts: list[Any] = list(self._source.to_load()[1:])
        return self._merged(parts)

    def copied(self) -> ReceivedPayload:
        """Itself: it is loaded into memory of its own anyhow."""
        return self

    def load(self) -> Any:
        """The object; its arrays and tensors are writable, and lie where the bytes are.

        Raises:
            CodecError, OSError: see `ReceivedPayload`; or its parts cannot be had, for good.
            CommError, CommTimeout: see `Devices.read`.
        """
        if not isinstance(self._source, tuple):
            head, *buffers = self.frames()
            return decode(head, buffers)
        devices, use = self._source
        tensors = devices.copies(self._what, use)
        head, *buffers = self._merged([b""] * len(tensors))
        numbers = (number for number, place in enumerate(self._where.places) if place is not None)
        return decode(head, buffers, dict(zip(numbers, tensors, strict=True)))

    def _merged(self, parts: Sequence[Buffer]) -> list[Buffer]:
        others, there = iter(self._sent.frames()[1:]), iter(parts)
        head = next(others)
        places = self._where.places
        return [bytes(head), *(bytearray(next(others)) if at is None else next(there) for at in places)]


class Landing:
    """Objects of one delivery on their way; on the I/O thread. It ends by calling `done` once, or by `cancel`.

    Args:
        devices: what this process shares on devices.
        what: one of them, for messages.
        items: what was sent.
        done: called with all of them, to be loaded; or with None and why the owner of one cannot be reached.
    """

    def __init__(
        self,
        messenger: Messenger,
        devices: Devices,
        what: str,
        items: Sequence[ReceivedPayload],
        done: Callable[[list[ReceivedPayload] | None, BaseException | None], None],
    ) -> None:
        self._messenger = messenger
        self._devices = devices
        self._what = what
        self._items = list(items)
        self._done: Callable[[list[ReceivedPayload] | None, BaseException | None], None] | None = done
        self._waiting: dict[int, OnDevice] = {
            place: OnDevice.from_frame(frames[0])
            for place, item in enumerate(self._items)
            if is_staged(frames := item.frames())
        }

    def begin(self) -> None:
        """Open the buckets, and ask for what cannot be opened here."""
        for place, where in list(self._waiting.items()):
            item = self._items[place]
            # Without its block, as before it is known who reads shared memory, nobody here would keep it there.
            if item.block is not None and self._devices.readable_here(where):
                opened = partial(self._opened, place, where)
                self._devices.open(self._what, item, opened)
            else:
                self._ask(place, where, as_bytes=False)

    def cancel(self) -> None:
        """Nobody wants them any more."""
        self._done = None

    def describe(self) -> str:
        """What is waited for, in a phrase."""
        devices = " and ".join(sorted({where.device for where in self._waiting.values()}))
        are = "is on its way" if len(self._waiting) == 1 else "are on their way"
        return f"{len(self._waiting)} of its items {are} from {devices}"

    def _opened(self, place: int, where: OnDevice, use: BucketUse | None) -> None:
        if use is None:
            self._ask(place, where, as_bytes=False)
        else:
            self._land(place, where, (self._devices, use))

    def _ask(self, place: int, where: OnDevice, *, as_bytes: bool) -> None:
        if self._done is None:
            return
        has_device = self._devices.has(where.device)
        question = ReadStaged(where, self._messenger.endpoint, has_device, as_bytes)
        asked = self._messenger.request(
            where.owner, READ, question, timeout_s=COPY_TIMEOUT_S, reply_type=ReadOut
        )
        asked.add_done_callback(partial(self._on_read, place, where, as_bytes))

    def _on_read(self, place: int, where: OnDevice, as_bytes: bool, asked: Promise[Reply]) -> None:
        error = asked.exception(0)
        if error is not None:
            self._end(None, error)
            return
        read: ReadOut = asked.result(0).head
        if read.problem:
            problem = f"{self._what} of '{where.owner_name}' on {where.device}: {read.problem}"
            self._land(place, where, problem)
            return
        try:
            self._land(place, where, self._messenger.payloads.receive(asked.result(0).frames))
        except SharedMemoryUnreadable as unreadable:
            if as_bytes:
                self._end(None, unreadable)
            else:
                self._ask(place, where, as_bytes=True)

    def _land(
        self, place: int, where: OnDevice, source: tuple[Devices, BucketUse] | ReceivedPayload | str
    ) -> None:
        self._items[place] = ReceivedDevicePayload(self._what, self._items[place], where, source)
        self._waiting.pop(place, None)
        if not self._waiting:
            self._end(self._items, None)

    def _end(self, items: list[ReceivedPayload] | None, error: BaseException | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(items, error)


def land(messenger: Messenger, devices: Devices, what: str, item: ReceivedPayload) -> ReceivedPayload:
    """One object, to be loaded; waits for it. Never on the I/O thread.

    Raises:
        CommError: its owner cannot be reached.
        CommTimeout: it has not come after `COPY_TIMEOUT_S`.
    """
    landed: Promise[ReceivedPayload] = Promise()

    def done(items: list[ReceivedPayload] | None, error: BaseException | None) -> None:
        if items is None:
            landed.set_exception(error or CommError(f"{what} cannot be had"))
        else:
            landed.set_result(items[0])

    messenger.submit(lambda: Landing(messenger, devices, what, [item], done).begin())
    try:
        return landed.result(COPY_TIMEOUT_S)
    except TimeoutError as error:
        before = "the process that has it, or what its device was asked before"
        raise CommTimeout(f"copy of {what}", "its producer", COPY_TIMEOUT_S, before) from error
