"""Items of channels whose tensors stay on their device, and how they are lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlinf_scheduler.channel.placed import PlacedPayload
from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.devices.devices import Devices, open_devices
from rlinf_scheduler.devices.landing import Landing, land
from rlinf_scheduler.devices.records import OnDevice, is_staged
from rlinf_scheduler.devices.staging import StagedPayload
from rlinf_scheduler.session import Session

logger = Reporter(__name__)

# So long a channel's process may take to say whether it reads this one's shared memory.
KNOWN_S = 5.0


class DevicePayload(PlacedPayload):
    """An item in a bucket, as it is put: the block that stands for it, and never its bytes.

    The channel's server holds that block then, so the bucket stays as it is.
    """

    __slots__ = ("_devices", "_staged", "_what")

    def __init__(self, what: str, staged: StagedPayload, devices: Devices) -> None:
        at = staged.payload.descriptor
        super().__init__([] if at is None else [at.to_frame()], staged.size_bytes)
        self._what = what
        self._staged = staged
        self._devices = devices

    def bytes_frames(self) -> list[Buffer]:
        """Return the frames that name its place; only a process that holds the block can use them."""
        return self._staged.payload.bytes_frames()

    def bring(self, then: Callable[[Payload | BaseException], None]) -> None:
        """Copy it to host memory; `then` is called on the I/O thread."""
        self._devices.copy_out(self._what, self._staged, then)


class DeviceItems:
    """Puts items of one channel into buckets, where that can be, and takes them out of those of others.

    Args:
        session: this process's.
        channel: the channel's name.
        server: the process that holds it.
    """

    def __init__(self, session: Session, channel: str, server: Endpoint) -> None:
        self._what = f"an item of channel '{channel}'"
        self._devices = devices = session.service(open_devices)
        self._messenger = session.messenger
        self._server = server
        self._is_said = False
        self.device_of = devices.device_of
        self.is_worth_it = devices.is_worth_it
        self.has = is_staged

    def stage(self, encoded: Encoded, left_s: float | None) -> DevicePayload | None:
        """An item in a bucket; None if it goes through host memory.

        Args:
            encoded: the item.
            left_s: in so many seconds its put is over; None: it waits.

        Raises:
            CommTimeout: the device has done nothing for minutes.
        """
        self._messenger.check_process()
        # The device thread asks the I/O thread for what it needs.
        if self._messenger.on_io_thread() or not self._devices.is_worth_it(encoded):
            return None
        if not self._is_read_by_server(KNOWN_S if left_s is None else min(KNOWN_S, left_s)):
            self._say_without()
            return None
        staged = self._devices.stage(self._what, encoded)
        if staged is None:
            return None
        staged.passed_on()
        return DevicePayload(self._what, staged, self._devices)

    def landing(
        self,
        items: Sequence[ReceivedPayload],
        done: Callable[[list[ReceivedPayload] | None, BaseException | None], None],
    ) -> Landing:
        """Return what brings the items of one delivery here; see `Landing`."""
        return Landing(self._messenger, self._devices, self._what, items, done)

    def landed(self, item: ReceivedPayload) -> ReceivedPayload:
        """Return one item, to be loaded; wait for it, and raise as `land`."""
        return land(self._messenger, self._devices, self._what, item)

    def _is_read_by_server(self, within_s: float) -> bool:
        if self._server.machine_id != self._messenger.endpoint.machine_id:
            return False
        payloads = self._messenger.payloads
        if not payloads.reads_ours(self._server.process_id):
            known: Promise[None] = Promise()
            payloads.when_ready(self._server, lambda: known.set_result(None))
            known.wait(within_s)
        return payloads.reads_ours(self._server.process_id)

    def _say_without(self) -> None:
        if not self._is_said:
            self._is_said = True
            logger.warning(
                "%s goes through host memory: the channel's process is on another machine, or cannot read this "
                "process's shared memory (`group_affinity` of `Channel.create` says where it is)",
                self._what,
            )


def why_gone(process_id: str, name: str, payload: object) -> str:
    """How an item was lost with its producer, in a phrase; "" if it was not.

    Args:
        process_id: of a process that is gone.
        name: the process's.
        payload: the item.
    """
    block = payload.block if isinstance(payload, ReceivedPayload) else None
    if block is None or block.hold.arena.owner.process_id != process_id:
        return ""
    frames = payload.frames()  # type: ignore[attr-defined]
    if not is_staged(frames):
        return ""
    return f"put by '{name}' went with it: they were on its device {OnDevice.from_frame(frames[0]).device}"
