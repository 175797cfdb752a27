"""The way of blocking operations: a connection of the calling thread's own to the channel's server.

A thread that puts and gets one after the other waits for each answer. On a lane it reads the answer itself, instead of
being woken by the I/O thread that read it. To the server a lane is one more client; what holds for clients holds for
it: if it breaks, or its thread is interrupted in the middle, what waits is withdrawn and what was delivered and not
confirmed goes back.

A lane carries what is small: gets, and puts of small items or of descriptors. It is used only when nothing else of this
process is under way on the channel, so that the order of a process's operations stays what it was.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

from rlinf.scheduler.channel import wire
from rlinf.scheduler.channel.operation import Operation
from rlinf.scheduler.channel.refusals import refusal_error
from rlinf.scheduler.channel.spec import ChannelRef
from rlinf.scheduler.comm import framing
from rlinf.scheduler.comm.blocking_link import BlockingLink
from rlinf.scheduler.comm.framing import Buffer
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.parcel import Arrived
from rlinf.scheduler.errors import ChannelLost, CommError, SharedMemoryUnreadable

logger = logging.getLogger(__name__)

OPEN_TIMEOUT_S = 10.0
# Making a lane costs about as much as it saves in so many operations.
MIN_USES = 4
# So many threads of a process have one; each is a descriptor here and one at the server.
MAX_LANES = 8


class LaneBroken(Exception):
    """The lane's connection is gone; the text says how."""


class NoAnswer(Exception):
    """The server has not said a word in time."""


class Lane:
    """One thread's way to one channel.

    Args:
        messenger: this process's messenger.
        ref: the channel.
        confirm_delay_s: confirmations wait so long for an operation to travel with.

    Attributes:
        broken: whether it cannot be used any more.
        on_end: called when nobody refers to it any more.

    Raises:
        CommError: the server cannot be reached this way.
    """

    def __init__(self, messenger: Messenger, ref: ChannelRef, confirm_delay_s: float) -> None:
        self.broken = True
        self.on_end: Callable[[], None] | None = None
        self._ref = ref
        self._messenger = messenger
        self._confirm_delay_s = confirm_delay_s
        self._service = wire.operations_service(ref.spec.channel_id)
        self._confirmed: list[int] = []
        self._timer_due = False
        self._send_lock = threading.Lock()
        self._link = BlockingLink(messenger, ref.endpoint)
        try:
            control = wire.control_service(ref.spec.channel_id)
            self._link.request(control, ["open", self._link.endpoint.to_wire()], OPEN_TIMEOUT_S)
        except BaseException:
            self._link.close()
            raise
        self.broken = False

    def run(
        self, operation: Operation, head: list[Any], frames: list[Buffer], limit_s: float | None
    ) -> list[Arrived] | None:
        """Run one operation to its end; the items of a get.

        Args:
            operation: what it is, for error texts; with its ticket.
            head: what the server is sent.
            frames: the item of a put.
            limit_s: how long to wait for the server's word; None as long as its process lives.

        Raises:
            LaneBroken: the connection is gone; what became of the operation is not known.
            NoAnswer: no word within `limit_s`.
            ChannelError: what the operation failed with.
        """
        try:
            self._send(head, frames)
            return self._wait(operation, limit_s)
        except CommError as error:
            if isinstance(error, SharedMemoryUnreadable):
                raise
            self.close()
            raise LaneBroken(str(error)) from error
        except NoAnswer:
            self.close()
            raise
        except BaseException as error:
            # A refusal is an answer like any other; an interruption leaves us in the middle of something.
            if not isinstance(error, Exception):
                self.close()
            raise

    def confirm(self, ticket: int, *, at_once: bool) -> None:
        """Tell the server that the items of a get were taken: now, or soon."""
        self._confirmed.append(ticket)
        if at_once:
            self.flush()
        elif not self._timer_due:
            self._timer_due = True
            self._messenger.call_later(self._confirm_delay_s, self._on_timer)

    def give_back(self, ticket: int) -> None:
        """Nobody will take the items of a get: an interruption came before they were read."""
        self._post([wire.GIVE_BACK, ticket])

    def flush(self) -> None:
        """Send what is confirmed; from any thread, never blocks."""
        if self._confirmed and not self.broken:
            self._post()

    def shut(self) -> None:
        """End what waits on the lane; from another thread."""
        self.flush()
        self.broken = True
        self._link.shut()

    def close(self) -> None:
        """Give the lane up."""
        self.flush()
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptor and say nothing."""
        self.broken = True
        self._link.close()

    def __del__(self) -> None:
        # Its thread has ended. What it had taken and not confirmed must not come back.
        if hasattr(self, "_link"):
            self.close()
        if self.on_end is not None:
            self.on_end()

    def _on_timer(self) -> None:
        self._timer_due = False
        self.flush()

    def _post(self, *operations: list[Any]) -> None:
        try:
            with self._send_lock:
                confirmed, self._confirmed = self._confirmed, []
                self._link.send(framing.pack(framing.NOTIFY, 0, self._service, [confirmed, operations]))
        except CommError:
            self.broken = True

    def _send(self, head: list[Any], frames: list[Buffer]) -> None:
        with self._send_lock:
            confirmed, self._confirmed = self._confirmed, []
            self._link.send(framing.pack(framing.NOTIFY, 0, self._service, [confirmed, [head]], frames))

    def _wait(self, operation: Operation, limit_s: float | None) -> list[Arrived] | None:
        while True:
            message = self._link.receive(limit_s)
            if message is None:
                raise NoAnswer
            _, _, _, head, frames = message
            if head is None:
                self.broken = True
                raise ChannelLost(self._ref.spec.name, "its server left")
            accepted, news = head
            if operation.ticket in accepted:
                return None
            for kind, ticket, *rest in news:
                if ticket != operation.ticket:
                    continue
                if kind == wire.REFUSED:
                    raise self._refusal(operation, *rest)
                if kind == wire.DELIVERED:
                    items = self._receive(ticket, rest[0], frames)
                    if items is not None:
                        return items

    def _refusal(self, operation: Operation, reason: str, state: str) -> BaseException:
        if reason == wire.UNREADABLE:
            self._messenger.parcels.distrust(self._ref.endpoint.process_id, state)
        return refusal_error(self._ref.spec.name, operation, reason, state)

    def _receive(self, ticket: int, counts: list[int], frames: list[Buffer]) -> list[Arrived] | None:
        rest = iter(frames)
        try:
            return [self._messenger.parcels.receive(list(islice(rest, count))) for count in counts]
        except SharedMemoryUnreadable:
            self._post([wire.RESEND, ticket])
            return None


class _OfThread(threading.local):
    """What one thread has."""

    lane: Lane | None = None
    num_uses = 0


class Lanes:
    """The lanes of a connection, one a thread; made when a thread has blocked often enough to be worth it.

    Args:
        make: makes a lane.
    """

    def __init__(self, make: Callable[[], Lane]) -> None:
        self._make = make
        self._of_thread = _OfThread()
        self._all: weakref.WeakSet[Lane] = weakref.WeakSet()
        # Not a semaphore: lanes end anywhere the garbage collector runs, where nothing may be locked.
        self._free = deque(range(MAX_LANES))
        self._closed = False

    def get(self) -> Lane | None:
        """The calling thread's lane; None if it has none now."""
        mine = self._of_thread
        if mine.lane is not None and not mine.lane.broken:
            return mine.lane
        mine.num_uses += 1
        if mine.num_uses < MIN_USES or self._closed:
            return None
        mine.num_uses = 0
        mine.lane = None
        try:
            number = self._free.popleft()
        except IndexError:
            return None
        try:
            lane = self._make()
        except BaseException as error:
            self._free.append(number)
            if not isinstance(error, CommError):
                raise
            logger.debug("no lane: %s", error)
            return None
        lane.on_end = partial(self._free.append, number)
        self._all.add(lane)
        mine.lane = lane
        return lane

    def flush(self) -> None:
        """Send what is confirmed on any of them."""
        for lane in list(self._all):
            lane.flush()

    def shut(self) -> None:
        """End all of them; who waits on one is woken."""
        self._closed = True
        for lane in list(self._all):
            lane.shut()

    def abandon(self) -> None:
        """Close every descriptor in a forked child."""
        self._closed = True
        for lane in list(self._all):
            lane.abandon()
