"""What arrives in shared memory is pinned, so that a device copies it by itself, as fast as its bus is.

A device may still read what nobody here refers to any more, if it was told to copy and not waited for
(`tensor.to(device, non_blocking=True)`). So a pinned block is released once the devices have done all that they were
asked before its last array was dropped.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial

from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.promise import Promise, Wake
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.serial_thread import SerialThread
from rlinf_scheduler.comm.shm import kernel
from rlinf_scheduler.comm.shm.foreign import BlockLease, ForeignArena, Hold
from rlinf_scheduler.devices.cuda_driver import cuda_driver
from rlinf_scheduler.devices.driver import DeviceDriver, DeviceUnusable
from rlinf_scheduler.devices.pins import PinKey, Pins

logger = Reporter(__name__)

# Below that, a copy takes no longer than to see that a device has done with it.
PINNED_FROM_BYTES = 1 << 20
# How long a thread waits until what it loads is pinned: the driver takes a second for some GiB.
PIN_TIMEOUT_S = 60.0
# So often it is looked whether an owner wants its memory back, and what an interruption has left.
LOOK_EVERY_S = 0.5


class PinnedUse:
    """A pinned block that a device may read as long as something refers to this."""

    __slots__ = ("__weakref__", "_wake")

    def __init__(self, wake: Wake) -> None:
        self._wake = wake


class _PinnedUseRef(weakref.ref[PinnedUse]):
    """Stands for a use; in a deque once that is dropped, in one step of the interpreter's own."""

    __slots__ = ("hold", "key")
    key: PinKey
    hold: Hold


class PinnedBlocks:
    """The blocks that this process has pinned.

    What cannot be pinned it says once, in the log, and loads it as it is.

    Args:
        find_driver: the driver of this process's devices; None as long as it uses none.
        limit_bytes: how much is pinned at most.
    """

    def __init__(
        self, messenger: Messenger, find_driver: Callable[[], DeviceDriver | None], limit_bytes: int
    ) -> None:
        self._messenger = messenger
        self._find_driver = find_driver
        self._thread = SerialThread()
        # On a thread of its own: a device may be busy for long, and what comes next is not to wait for that.
        self._waiting = SerialThread()
        self._is_waiting = False
        self._pid = os.getpid()
        self._driver: DeviceDriver | None = None
        self._pins = Pins(limit_bytes)
        self._arenas: dict[str, ForeignArena] = {}
        self._uses: set[_PinnedUseRef] = set()
        self._dropped: deque[weakref.ref[PinnedUse]] = deque()
        self._stuck: list[ForeignArena] = []
        self._looks_later = False
        self._closed = False
        self._said: set[str] = set()
        messenger.payloads.pin = self.pin
        messenger.at_end(self._on_end)

    # -- from any thread -------------------------------------------------------------------------

    def pin(self, lease: BlockLease) -> PinnedUse | None:
        """Pin what a lease is of; gives what keeps it pinned, or None where it is not worth it, or cannot be."""
        if lease.size_bytes < PINNED_FROM_BYTES or self._messenger.on_io_thread() or self._closed:
            return None
        if self._driver is None:
            self._driver = self._find_driver()
        if self._driver is None or os.getpid() != self._pid:
            return None
        size_bytes = -(-lease.size_bytes // kernel.PAGE_BYTES) * kernel.PAGE_BYTES
        try:
            return self._thread.ask(partial(self._pin, self._driver, lease.hold, size_bytes)).result(
                PIN_TIMEOUT_S
            )
        except TimeoutError:
            self._say("slow", "the device answers nothing for %.0f s", PIN_TIMEOUT_S)
        except DeviceUnusable as error:
            self._say("refused", "%s", error)
        return None

    def _wake(self) -> None:
        if os.getpid() == self._pid:
            self._thread.put(self._tidy)
        else:
            # In a forked child, which has no device, what is used is held by its users alone.
            self._uses.clear()

    # -- the device thread -----------------------------------------------------------------------

    def _pin(self, driver: DeviceDriver, hold: Hold, size_bytes: int) -> PinnedUse | None:
        arena, key = hold.arena, PinKey(hold.arena.owner.process_id, hold.index)
        if arena.seat.slot < 0 or self._closed:
            return None
        if not self._pins.covers(key, size_bytes):
            self._add(driver, key, arena, size_bytes)
        self._pins.begin(key)
        use = PinnedUse(Wake(self._wake))
        ref = _PinnedUseRef(use, self._dropped.append)
        ref.key, ref.hold = key, hold
        self._uses.add(ref)
        return use

    def _add(self, driver: DeviceDriver, key: PinKey, arena: ForeignArena, size_bytes: int) -> None:
        unpinned = self._pins.make_room(key, size_bytes)
        if unpinned is None:
            raise DeviceUnusable(
                f"{self._pins.size_bytes >> 20} of {self._pins.limit_bytes >> 20} MiB are pinned and in use "
                "(RLINF_PINNED_MIB sets how much may be)"
            )
        for other in unpinned:
            self._unpin(driver, other)
        table, slot, address = arena.seat.table, arena.seat.slot, arena.address(key.block)
        # First: its owner must not give back pages that a device reads.
        table.pin(slot, key.block)
        try:
            driver.pin(address, size_bytes)
        except BaseException:
            table.unpin(slot, key.block)
            raise
        self._arenas[key.owner_id] = arena
        self._pins.add(key, size_bytes)
        self._messenger.submit(self._look_later)

    def _unpin(self, driver: DeviceDriver, key: PinKey) -> None:
        arena = self._arenas[key.owner_id]
        self._pins.remove(key)
        # Its memory stays mapped as long as something of it is pinned, and no longer.
        if not self._pins.has(key.owner_id):
            del self._arenas[key.owner_id]
        try:
            driver.unpin(arena.address(key.block))
        except DeviceUnusable as error:
            # The block stays its owner's, with the pages that it has.
            self._stuck.append(arena)
            self._say("unpin", "%s", error)
        else:
            arena.seat.table.unpin(arena.seat.slot, key.block)

    def _settle(self, driver: DeviceDriver) -> None:
        """Release what was dropped until now, once no device reads it."""
        if not self._dropped or self._is_waiting:
            return
        dropped = [self._dropped.popleft() for _ in range(len(self._dropped))]
        self._is_waiting = True

        def settled(answer: Promise[None]) -> None:
            self._thread.put(partial(self._settled, dropped, answer.exception()))

        self._waiting.ask(driver.settle).add_done_callback(settled)

    def _settled(self, dropped: list[weakref.ref[PinnedUse]], error: BaseException | None) -> None:
        self._is_waiting = False
        if error is not None:
            # It is looked at again.
            self._dropped.extend(dropped)
            self._say("settle", "what a device has done with is not known, and stays held: %s", error)
            return
        for ref in dropped:
            if isinstance(ref, _PinnedUseRef):
                self._uses.discard(ref)
                self._pins.end(ref.key)
        self._tidy()

    def _tidy(self) -> None:
        driver = self._driver
        if driver is None:
            return
        self._settle(driver)
        wanted = {owner_id for owner_id, arena in self._arenas.items() if arena.unpin_is_wanted()}
        for key in self._pins.idle(lambda key: self._closed or key.owner_id in wanted):
            self._unpin(driver, key)
        if self._closed and not len(self._pins):
            self._thread.stop()
            self._waiting.stop()

    def _say(self, key: str, text: str, *args: object) -> None:
        if key not in self._said:
            self._said.add(key)
            logger.warning("what arrives is not pinned, and copied to devices more slowly: " + text, *args)

    # -- the I/O thread --------------------------------------------------------------------------

    def _look_later(self) -> None:
        if not self._looks_later:
            self._looks_later = True
            self._messenger.call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        self._looks_later = False
        self._thread.put(self._tidy)
        if len(self._pins):
            self._look_later()

    def _on_end(self) -> None:
        self._closed = True
        if self._driver is not None:
            self._thread.put(self._tidy)


def pin_arrivals(messenger: Messenger, limit_bytes: int) -> None:
    """Pin what arrives in a process, for the CUDA devices that it uses, up to so many bytes."""
    PinnedBlocks(messenger, cuda_driver, limit_bytes)
