"""What a process shares with others on devices: its own buckets, theirs, and the thread that sees to both."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.codec.sources import StridedTensor
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.locations import DeviceObjects
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.serial_thread import SerialThread
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.shm.payloads import SHARED_BYTES, WAIT_S
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.devices.barred import Barred
from rlinf_scheduler.devices.cuda_driver import cuda_driver
from rlinf_scheduler.devices.driver import DeviceDriver, DeviceUnusable
from rlinf_scheduler.devices.imports import BucketImports, BucketUse
from rlinf_scheduler.devices.open_buckets import BucketKey
from rlinf_scheduler.devices.records import (
    OPENED,
    READ,
    RETIRE,
    BucketOpened,
    OnDevice,
    ReadOut,
    ReadStaged,
    Retire,
    is_staged,
)
from rlinf_scheduler.devices.staging import StagedPayload, Staging
from rlinf_scheduler.errors import CommError, CommTimeout, ConfigError
from rlinf_scheduler.session import Session

logger = Reporter(__name__)
T = TypeVar("T")

POOL_VARIABLE = "RLINF_DEVICE_POOL_MIB"

# A copy comes after what its thread had asked of the device before, which may be a whole step of training.
COPY_TIMEOUT_S = 600.0


class Devices(DeviceObjects):
    """Shares objects with the ranks that have the same devices; at most one on a messenger.

    What it cannot do it says once, in the log, and then the objects go through host memory.

    Args:
        messenger: this process's.
        find_driver: the driver of this process's devices; None as long as it uses none.
        limit_bytes: how much its buckets take on each device at most; None: what `RLINF_DEVICE_POOL_MIB` says, or a
            quarter of the device.
    """

    def __init__(
        self,
        messenger: Messenger,
        find_driver: Callable[[], DeviceDriver | None],
        *,
        limit_bytes: int | None = None,
    ) -> None:
        self._messenger = messenger
        self._find_driver = find_driver
        self._limit_bytes = _pool_limit_bytes() if limit_bytes is None else limit_bytes
        self._driver: DeviceDriver | None = None
        self._thread = SerialThread()
        self._staging = Staging(messenger, self._thread, self._limit_bytes)
        self._imports = BucketImports(messenger, self._thread)
        # Whose buckets could not be opened here lately.
        self._barred = Barred(messenger.call_later)
        self._said: set[str] = set()
        messenger.serve(RETIRE, self._on_retire, Retire)
        messenger.serve(OPENED, self._on_opened, BucketOpened)
        messenger.serve(READ, self._on_read, ReadStaged)
        messenger.on_peer_lost(self._on_peer_lost)
        messenger.at_end(self._on_end)

    # -- from a user's thread --------------------------------------------------------------------

    def device_of(self, tensor: Any) -> str:
        """The UUID of the device that a tensor is on, if other processes can share it; else ""."""
        driver = self._found()
        return "" if driver is None else driver.device_of(tensor)

    def is_worth_it(self, encoded: Encoded) -> bool:
        """Whether so much of an object is on one device that it is put into a bucket."""
        return bool(self._main_device(encoded))

    def stage(self, what: str, encoded: Encoded) -> StagedPayload | None:
        """Put what an object has on one device into a bucket there; None if that is not worth it, or cannot be.

        Args:
            what: the object, for messages.
            encoded: it.

        Raises:
            CommTimeout: the device has done nothing for `COPY_TIMEOUT_S`.
        """
        driver, device = self._found(), self._main_device(encoded)
        if driver is None or not device:
            return None
        mark = driver.mark(device)
        try:
            return self._wait(what, device, partial(self._staging.stage, driver, device, encoded, mark))
        except DeviceUnusable as error:
            self._say(f"stage {device}", "%s goes through host memory: %s", what, error)
            return None

    def read(self, what: str, use: BucketUse, copy: Callable[[], None]) -> None:
        """Let `copy` copy out of a bucket, by torch; what it copies is there at the end.

        If this is interrupted, the copy goes on.

        Args:
            what: the object, for messages.
            use: the bucket.
            copy: copies, on the device thread.

        Raises:
            CommError: this process has left the cluster.
            CommTimeout: the device has done nothing for `COPY_TIMEOUT_S`.
        """
        driver, torch = self._found(), sys.modules["torch"]
        if driver is None:
            raise CommError(f"{what}: its device is none of this process's any more")
        mark = driver.mark(use.memory.device)
        # A mode of torch's is a thread's own.
        in_inference = torch.is_inference_mode_enabled()

        def read() -> None:
            if use.memory.bytes is None:
                raise CommError(f"{what}: this process has left the cluster")
            with driver.copying(use.memory.device, mark), torch.inference_mode(in_inference):
                copy()

        self._wait(what, use.memory.device, read)

    def copies(self, what: str, use: BucketUse) -> list[Any]:
        """The parts of an object in a bucket, as new tensors of bytes on the same device.

        Raises:
            CommError, CommTimeout: as of `read`.
        """
        driver = self._found()
        places = [place for place in use.places if place is not None]
        if driver is None:
            raise CommError(f"{what}: its device is none of this process's any more")
        # Made in this thread, whose they are: torch hands their memory on in the order of this thread's stream.
        new = [driver.empty(use.memory.device, size) for _, size in places]

        def copy() -> None:
            for (begin, size), target in zip(places, new, strict=True):
                target.copy_(use.memory.bytes[begin : begin + size], non_blocking=True)

        self.read(what, use, copy)
        return new

    def _wait(self, what: str, device: str, step: Callable[[], T]) -> T:
        if self._messenger.why_closed:
            raise CommError(self._messenger.why_closed)
        try:
            return self._thread.ask(step).result(COPY_TIMEOUT_S)
        except TimeoutError as error:
            before = "what that device was asked before"
            raise CommTimeout(f"copy of {what}", device, COPY_TIMEOUT_S, before) from error

    def _found(self) -> DeviceDriver | None:
        if self._driver is None and self._limit_bytes != 0:
            self._driver = self._find_driver()
        return self._driver

    def _main_device(self, encoded: Encoded) -> str:
        """The device that most of an object is on; "" if it is too small to be worth it."""
        sizes: dict[str, int] = {}
        for part in encoded.parts:
            if isinstance(part, StridedTensor):
                device = self.device_of(part.tensor)
                sizes[device] = sizes.get(device, 0) + len(part)
        sizes.pop("", None)
        device = max(sizes, key=sizes.__getitem__, default="")
        return device if sizes.get(device, 0) >= SHARED_BYTES else ""

    # -- the I/O thread --------------------------------------------------------------------------

    def is_staged(self, frames: Sequence[Buffer]) -> bool:
        """Say whether parts of the object with these frames lie on a device."""
        return is_staged(frames)

    def readable_from(self, process_id: str, devices: tuple[str, ...]) -> tuple[str, ...]:
        """Those of some devices on which this process can read what another one has staged."""
        return () if process_id in self._barred else devices

    def has(self, device: str) -> bool:
        """Whether this process has a device, and uses it."""
        driver = self._found()
        return driver is not None and device in driver.devices()

    def readable_here(self, where: OnDevice) -> bool:
        """Whether this process has the device of an object, and can open what its owner shares there."""
        here = (where.device,) if self.has(where.device) else ()
        return bool(self.readable_from(where.owner.process_id, here))

    def open(self, what: str, arrived: ReceivedPayload, then: Callable[[BucketUse | None], None]) -> None:
        """Open the bucket in which an object lies.

        Args:
            what: the object, for messages.
            arrived: what was sent.
            then: called on the I/O thread with the bucket, or with None if it cannot be opened here.
        """
        where = OnDevice.from_frame(arrived.frames()[0])

        def done(answer: Promise[BucketUse]) -> None:
            error = answer.exception()
            if error is not None:
                self._messenger.submit(partial(self._barred.add, where.owner.process_id))
                peer = where.owner_name
                # Its text: what keeps a record of it is not to keep what the error's traceback refers to.
                why = str(error)
                self._say(f"open {peer}", "%s of '%s' comes through host memory: %s", what, peer, why)
            use = None if error is not None else answer.result()
            self._messenger.submit(lambda: then(use))

        self._thread.ask(partial(self._open, arrived, where)).add_done_callback(done)

    def copy_out(
        self, what: str, staged: StagedPayload, then: Callable[[Payload | BaseException], None]
    ) -> None:
        """Copy an object to host memory.

        Args:
            what: the object, for messages.
            staged: it.
            then: called on the I/O thread with the copy, or with what went wrong.
        """

        def done(answer: Promise[Payload]) -> None:
            error = answer.exception()
            copied: Payload | BaseException = answer.result() if error is None else error
            self._messenger.submit(lambda: then(copied))

        if self._messenger.why_closed:
            return
        logger.info("%s is read by who has not its device %s, and copied to host memory", what, staged.device)
        self._thread.ask(partial(self._copy_out, staged)).add_done_callback(done)

    def _on_retire(self, notice: Request) -> None:
        key = BucketKey(notice.peer_id, notice.head.index, notice.head.generation)
        self._thread.put(partial(self._imports.retire, key))

    def _on_opened(self, notice: Request) -> None:
        opened: BucketOpened = notice.head
        notice.check_claim(opened.reader.process_id, "it has a bucket open")
        self._thread.put(partial(self._staging.opened, opened))

    def _on_read(self, request: Request) -> None:
        asked: ReadStaged = request.head
        request.check_claim(asked.reader.process_id, "it reads for itself")

        def done(answer: Promise[Payload | None]) -> None:
            error = answer.exception()
            copied = None if error is not None else answer.result()
            self._messenger.submit(lambda: give(copied, error))

        def give(copied: Payload | None, error: BaseException | None) -> None:
            if copied is None:
                problem = "it is not there any more" if error is None else f"it cannot be copied: {error!r}"
                request.reply(ReadOut(problem))
                return
            frames = copied.bytes_frames() if asked.as_bytes else copied.frames_for(asked.reader)
            # The payload stays until the reader has it.
            request.reply(ReadOut(), frames, snapshot=False, on_confirmed=partial(_on_confirmed, copied))

        device = asked.where.device
        if not asked.has_device:
            told = "what lies on %s is read by '%s', which has not that device: it goes through host memory"
            self._say(f"read {device}", told, device, request.peer_name)
        self._messenger.payloads.when_ready(
            asked.reader,
            lambda: self._thread.ask(partial(self._read_parts, asked.where)).add_done_callback(done),
        )

    def _on_peer_lost(self, process_id: str) -> None:
        self._barred.discard(process_id)
        if self._driver is not None:
            self._thread.put(partial(self._imports.lose, process_id))
            self._thread.put(partial(self._staging.lose, process_id))

    def _on_end(self) -> None:
        if self._driver is not None:
            self._thread.put(partial(self._end, self._driver))

    # -- the device thread -----------------------------------------------------------------------

    def _open(self, arrived: ReceivedPayload, where: OnDevice) -> BucketUse:
        driver = self._driver
        if driver is None:
            raise DeviceUnusable("this process uses no device")
        if where.owner.process_id != self._messenger.endpoint.process_id:
            use = self._imports.use(driver, where)
        else:
            memory = self._staging.memory_of(where)
            if memory is None:
                raise DeviceUnusable("its memory was given up")
            use = BucketUse(memory, where, None)
        use.holds = arrived
        return use

    def _copy_out(self, staged: StagedPayload) -> Payload:
        driver = self._driver
        if driver is None:
            raise DeviceUnusable("this process uses no device")
        with driver.copying(staged.device):
            return self._messenger.payloads.pack(staged.elsewhere(), None, snapshot=True, wait_s=WAIT_S)

    def _read_parts(self, where: OnDevice) -> Payload | None:
        encoded, driver = self._staging.parts_of(where), self._driver
        if encoded is None or driver is None:
            return None
        with driver.copying(where.device):
            return self._messenger.payloads.pack(encoded, None, snapshot=True, wait_s=WAIT_S)

    def _end(self, driver: DeviceDriver) -> None:
        self._staging.close(driver)
        if self._imports.close():
            self._thread.stop()

    def _say(self, key: str, text: str, *args: object) -> None:
        if key not in self._said:
            self._said.add(key)
            logger.warning(text, *args)


def _on_confirmed(_payload: Payload, _taken: bool) -> None:
    """Refers to a payload until somebody has taken it, or never will."""


def open_devices(session: Session) -> Devices:
    """What a session's process shares on devices; `session.service(open_devices)` is always the same."""
    return Devices(session.messenger, cuda_driver)


def _pool_limit_bytes() -> int | None:
    """Return what the variable says, 0 for no buckets; None where it says nothing."""
    text = os.environ.get(POOL_VARIABLE)
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise ConfigError(
            f"{POOL_VARIABLE} is {text!r}; it takes a whole number of MiB, 0 for host memory only"
        )
    return int(text) << 20
