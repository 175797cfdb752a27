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
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from rlinf.scheduler.channel import wire
from rlinf.scheduler.channel.operation import Operation
from rlinf.scheduler.channel.refusals import refusal_error
from rlinf.scheduler.channel.spec import ChannelRef
from rlinf.scheduler.comm import framing
from rlinf.scheduler.comm.framing import Buffer
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.parcel import Arrived
from rlinf.scheduler.comm.transport.blocking_link import BlockingLink
from rlinf.scheduler.errors import CommError, SharedMemoryUnreadable

logger = logging.getLogger(__name__)

# A server that answers at once is given this long to open a lane.
MAKING_S = 1.0
# After a failure a thread tries again when it has blocked so often.
AFTER_FAILURE = 1000
# Making a lane costs about as much as it saves in so many operations.
MIN_USES = 4
# So many threads of a process have one; each is a descriptor here and one at the server.
MAX_LANES = 8


class LaneBroken(Exception):
    """The lane's connection is gone; the text says how."""


class NoAnswer(Exception):
    """The server has not said a word in time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an operation ended.

    Attributes:
        items: what a get was given.
        error: why the server refused it; None if it did not.
    """

    items: list[Arrived] = field(default_factory=list)
    error: BaseException | None = None


class Lane:
    """One thread's way to one channel.

    Args:
        messenger: this process's messenger.
        ref: the channel.
        confirm_delay_s: confirmations wait so long for an operation to travel with.
        timeout_s: how long making it may take.

    Attributes:
        broken: whether it cannot be used any more.
        busy: whether its thread is in the middle of an operation; a signal handler there must go another way.
        on_end: called when nobody refers to it any more.

    Raises:
        CommError: the server cannot be reached this way.
    """

    def __init__(
        self, messenger: Messenger, ref: ChannelRef, confirm_delay_s: float, timeout_s: float
    ) -> None:
        self.broken = True
        self.busy = False
        self.on_end: Callable[[], None] | None = None
        self._pid = os.getpid()
        self._ref = ref
        self._messenger = messenger
        self._confirm_delay_s = confirm_delay_s
        self._service = wire.operations_service(ref.spec.channel_id)
        self._confirmed: list[int] = []
        self._timer_due = False
        self._send_lock = threading.Lock()
        self._link = BlockingLink(messenger, ref.endpoint, timeout_s)
        try:
            control = wire.control_service(ref.spec.channel_id)
            self._link.request(control, ["open lane", self._link.endpoint.to_wire()], timeout_s)
        except BaseException:
            self._link.close()
            raise
        self.broken = False

    def run(
        self, operation: Operation, head: list[Any], frames: list[Buffer], limit_s: float | None
    ) -> Outcome:
        """Run one operation until the server has answered it.

        Whatever else ends it, a signal handler's exception say, ends the lane too: an answer that nobody took must
        not be there for the next operation.

        Args:
            operation: what it is, for error texts; with its ticket.
            head: what the server is sent.
            frames: the item of a put.
            limit_s: how long to wait for the server's word; None as long as its process lives.

        Raises:
            LaneBroken: the connection is gone; what became of the operation is not known.
            NoAnswer: no word within `limit_s`.
        """
        answered = False
        self.busy = True
        try:
            self._send([head], frames)
            outcome = self._wait(operation, limit_s)
            answered = True
        except CommError as error:
            raise LaneBroken(str(error)) from error
        finally:
            self.busy = False
            if not answered:
                self.close()
        return outcome

    def confirm(self, ticket: int, *, at_once: bool) -> None:
        """Tell the server that the items of a get were taken: now, or soon."""
        self._confirmed.append(ticket)
        if at_once:
            self.flush()
        elif not self._timer_due:
            self._timer_due = True
            self._messenger.call_later(self._confirm_delay_s, self._on_timer)

    def flush(self) -> None:
        """Send what is confirmed; from any thread, never blocks."""
        if not self._confirmed or self.broken:
            return
        try:
            self._send([])
        except CommError:
            self.broken = True

    def shut(self) -> None:
        """End what waits on the lane; from another thread."""
        self.flush()
        self.broken = True
        self._link.shut()

    def close(self) -> None:
        """Give the lane up: what was delivered on it and is not confirmed goes back."""
        self.flush()
        with self._send_lock:
            self.broken = True
            self._link.close()

    def abandon(self) -> None:
        """Close the descriptor in a forked child, and say nothing."""
        self.broken = True
        self._link.close()

    def __del__(self) -> None:
        # Its thread has ended. What it had taken and not confirmed must not come back.
        if hasattr(self, "_link"):
            if self._pid == os.getpid():
                self.close()
            else:
                self.abandon()
        if self.on_end is not None:
            self.on_end()

    def _on_timer(self) -> None:
        self._timer_due = False
        self.flush()

    def _send(self, operations: list[list[Any]], frames: Sequence[Buffer] = ()) -> None:
        with self._send_lock:
            if self.broken:
                raise CommError("it was closed")
            confirmed = self._confirmed[:]
            self._link.send(framing.pack(framing.NOTIFY, 0, self._service, [confirmed, operations], frames))
            # Not before: an interruption must not lose them. Confirming twice does no harm.
            del self._confirmed[: len(confirmed)]

    def _wait(self, operation: Operation, limit_s: float | None) -> Outcome:
        while True:
            message = self._link.receive(limit_s)
            if message is None:
                raise NoAnswer
            _, _, _, head, frames = message
            if head is None:
                raise CommError("its server left")
            accepted, news = head
            if operation.ticket in accepted:
                return Outcome()
            rest = iter(frames)
            for kind, ticket, *details in news:
                parts = [list(islice(rest, count)) for count in details[0]] if kind == wire.DELIVERED else []
                if ticket != operation.ticket:
                    continue
                if kind == wire.REFUSED:
                    return Outcome(error=self._refusal(operation, *details))
                items = self._receive(ticket, parts)
                if items is not None:
                    return Outcome(items)

    def _refusal(self, operation: Operation, reason: str, state: str) -> BaseException:
        if reason == wire.UNREADABLE:
            self._messenger.parcels.distrust(self._ref.endpoint.process_id, state)
        return refusal_error(self._ref.spec.name, operation, reason, state)

    def _receive(self, ticket: int, parts: list[list[Buffer]]) -> list[Arrived] | None:
        try:
            return [self._messenger.parcels.receive(part) for part in parts]
        except SharedMemoryUnreadable:
            self._send([[wire.RESEND, ticket]])
            return None


class _OfThread(threading.local):
    """What one thread has."""

    lane: Lane | None = None
    num_uses = 0


class Lanes:
    """The lanes of a connection, one a thread; made when a thread has blocked often enough to be worth it.

    Args:
        make: makes a lane, within so many seconds.
    """

    def __init__(self, make: Callable[[float], Lane]) -> None:
        self._make = make
        self._of_thread = _OfThread()
        # By number, as they go and come in any thread. Threads refer to their lanes, this does not.
        self._all: dict[int, weakref.ref[Lane]] = {}
        # Not a semaphore: lanes end anywhere the garbage collector runs, where nothing may be locked.
        self._free = deque(range(MAX_LANES))
        self._closed = False

    def all(self) -> list[Lane]:
        """Those there are."""
        return [lane for ref in list(self._all.values()) if (lane := ref()) is not None]

    def get(self, timeout_s: float | None) -> Lane | None:
        """The calling thread's lane for an operation that has `timeout_s`; None if it has none now."""
        mine = self._of_thread
        if mine.lane is not None and not mine.lane.broken:
            return None if mine.lane.busy else mine.lane
        mine.num_uses += 1
        if mine.num_uses < MIN_USES or self._closed:
            return None
        mine.num_uses = 0
        mine.lane = None
        try:
            number = self._free.popleft()
        except IndexError:
            return None
        lane = self._new(number, MAKING_S if timeout_s is None else min(MAKING_S, timeout_s))
        if lane is None:
            mine.num_uses = -AFTER_FAILURE
            return None
        mine.lane = lane
        return lane

    def _new(self, number: int, timeout_s: float) -> Lane | None:
        try:
            lane = self._make(timeout_s)
        except BaseException as error:
            self._free.append(number)
            if not isinstance(error, CommError):
                raise
            logger.debug("no lane: %s", error)
            return None
        lane.on_end = partial(self._end, number)
        self._all[number] = weakref.ref(lane)
        if self._closed:
            # It was made while the others were shut.
            lane.shut()
            return None
        return lane

    def _end(self, number: int) -> None:
        self._all.pop(number, None)
        self._free.append(number)

    def flush(self) -> None:
        """Send what is confirmed on any of them."""
        for lane in self.all():
            lane.flush()

    def shut(self) -> None:
        """End all of them; who waits on one is woken."""
        self._closed = True
        for lane in self.all():
            lane.shut()

    def abandon(self) -> None:
        """Close every descriptor in a forked child."""
        self._closed = True
        for lane in self.all():
            lane.abandon()
