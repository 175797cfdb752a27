"""Operations with a named peer: the I/O thread decides what becomes of them, and a promise tells their caller."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

from rlinf_scheduler.checks import FOREVER_S, is_seconds
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.finder import Finder, Search
from rlinf_scheduler.comm.loop import ending
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.operation import Operation, OperationPromise
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.waits import MESSAGE, Cause, Wait
from rlinf_scheduler.errors import CommError, CommTimeout, PeerDied, PeerNotFound

# What is cancelled has ended after so long, or goes on being given up without the caller.
CANCEL_WAIT_S = 1.0
# How long after a deadline an answer that says more than "it is late" is waited for: a fraction of the time, or this.
GRACE_S = 0.25
GRACE_FRACTION = 0.05
# A peer that died and comes back is looked for so much later.
SEARCH_AGAIN_S = 0.1


def checked_timeout(timeout_s: Any) -> float:
    """A deadline in seconds; None is none, which is thirty years.

    Raises:
        CommError: it is no number of at least 0.
    """
    if timeout_s is None:
        return FOREVER_S
    if is_seconds(timeout_s):
        return float(min(timeout_s, FOREVER_S))
    raise CommError(f"timeout_s is a number of seconds of at least 0, not {timeout_s!r}")


def end(promise: Promise[Any], value: Any, error: BaseException | None) -> None:
    """Complete a promise with either."""
    if isinstance(error, CancelledError):
        promise.set_cancelled()
    elif error is not None:
        promise.set_exception(error)
    else:
        promise.set_result(value)


class Transfers:
    """What is under way; when the messenger closes, it fails.

    Args:
        finder: finds peers.
    """

    def __init__(self, messenger: Messenger, finder: Finder) -> None:
        self.messenger = messenger
        self.finder = finder
        self.under_way: set[Transfer] = set()
        messenger.at_end(self._close)

    def hand_over(self, step: Callable[[], None], fail: Callable[[Exception], object]) -> None:
        """Let the I/O thread do something; from a user's thread.

        Args:
            step: what to do.
            fail: called with what that raises: it ends the wait for it.

        Raises:
            CommError: this is a forked child, or its parent has left the cluster.
        """
        self.messenger.check_process()
        self.messenger.submit(ending(step, fail))
        # Looked at afterwards: what was handed over before the end is part of it, what came later is not.
        if self.messenger.why_closed:
            raise CommError(self.messenger.why_closed)

    def _close(self) -> None:
        for transfer in list(self.under_way):
            transfer.end(error=CommError(self.messenger.why_closed))


class PeerOperation(Operation, ABC):
    """One operation with processes that have names.

    Args:
        transfers: what it is one of.
        operation: "send" or the like, for messages.
        peers: their names.
        timeout_s: how long it may take.
        started: when it began, on the messenger's clock; None for now.
        ticket: what tells it from others; 0 where nothing is to.
    """

    timeout_s: float

    def __init__(
        self,
        transfers: Transfers,
        operation: str,
        peers: Sequence[str],
        timeout_s: float,
        started: float | None = None,
        ticket: int = 0,
    ) -> None:
        self._transfers = transfers
        self._messenger = transfers.messenger
        super().__init__(ticket, max(0.0, timeout_s), self._messenger.now)
        if started is not None:
            self.started = started
        self.operation = operation
        self.peers = peers

    @abstractmethod
    def give_up(self) -> None:
        """End it as given up; on the I/O thread."""

    def awaits(self) -> Wait:
        """Return what a wait for it is for; in any thread."""
        limit_s = None if self.timeout_s >= FOREVER_S else self.timeout_s
        text = f"{self.operation}({', '.join(map(repr, self.peers))})"
        return Wait(MESSAGE, text, self.waited_s, limit_s, tuple(self.peers))

    def cause(self) -> Cause:
        """Return the cause under which a wait for it is counted."""
        return Cause(MESSAGE, (self.operation, *self.peers))

    def withdraw(self, promise: OperationPromise) -> None:
        """Give it up. Waits a moment for the answer."""
        self._messenger.submit(self.give_up)
        if not self._messenger.on_io_thread():
            promise.wait(CANCEL_WAIT_S)

    def explain(self, error: BaseException, limit_s: float | None, waited_s: float) -> None:
        """Add to what ended a wait for it why it did not end by itself, where somebody knows (see `Messenger`)."""
        self._messenger.explain(error, limit_s, waited_s)


class Transfer(PeerOperation):
    """One operation with one peer: the search for it and the deadline. Everything is on the I/O thread.

    Args:
        transfers: what it is one of.
        operation: "send" or the like, for messages.
        peer: the peer's name.
        timeout_s: how long it may take.
        started: when it began, on the messenger's clock; None for now.
        ticket: what tells it from others; 0 where nothing is to.
        wait_for_return: whether it goes on with another process that takes the peer's name when the peer dies.
    """

    def __init__(
        self,
        transfers: Transfers,
        operation: str,
        peer: str,
        timeout_s: float,
        started: float | None = None,
        *,
        ticket: int = 0,
        wait_for_return: bool = False,
    ) -> None:
        super().__init__(transfers, operation, (peer,), timeout_s, started, ticket)
        self.peer = peer
        self.process_id = ""  # of the peer, once it is found
        self.over = False
        self._search: Search | None = None
        self._is_late = False
        self._waits_for_return = wait_for_return

    def start(self) -> None:
        """Begin: at the deadline it ends, and the peer is looked up."""
        self._is_late = False
        self._transfers.under_way.add(self)
        self.arm()
        left_s = max(0.0, self.timeout_s - self.waited_s)
        self._search = search = Search(self._found, self._not_found, returns=self._waits_for_return)
        ending(lambda: self._transfers.finder.find(self.peer, left_s, search), self._fail)()

    def lose(self, error: PeerDied) -> None:
        """The peer is gone: that is the end, or it is looked for again after a moment."""
        if not self._waits_for_return:
            self.end(error=error)
            return
        # Others may not know of the end yet, and answer with the dead.
        self._messenger.call_later(SEARCH_AGAIN_S, self._again)

    def _again(self) -> None:
        if not self.over and self._search is None:
            self.start()

    def arm(self, timeout_s: float | None = None) -> None:
        """Let it end at its deadline, or `timeout_s` seconds from now."""
        left_s = max(0.0, self.timeout_s - self.waited_s) if timeout_s is None else timeout_s
        self._at(left_s, self._expire)

    def timeout(self, waiting_for: str) -> CommTimeout:
        """Return the error of its deadline, which says so if the peer cannot be reached."""
        condition = self._messenger.condition(self.process_id) if self.process_id else ""
        awaited = f"{waiting_for}; it is {condition}" if condition else waiting_for
        return CommTimeout(self.operation, self.peer, self.waited_s, awaited)

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back when no answer is to be expected any more after the deadline."""
        grace_s = max(GRACE_S, GRACE_FRACTION * self.timeout_s)
        late_s = self.waited_s - self.timeout_s if self._is_late else 0.0
        self._at(max(0.0, grace_s - late_s), callback)

    def end(self, value: Any = None, error: BaseException | None = None) -> None:
        """End it, once."""
        if self.over:
            return
        self.over = True
        self._transfers.under_way.discard(self)
        self.stop_clock()
        if self._search is not None:
            self._transfers.finder.cancel(self.peer, self._search)
        self.ended(value, renamed(error, self.peer))

    @abstractmethod
    def found(self, endpoint: Endpoint) -> None:
        """The peer is there."""

    @abstractmethod
    def expire(self) -> None:
        """The deadline has passed, and the peer is there."""

    @abstractmethod
    def ended(self, value: Any, error: BaseException | None) -> None:
        """It is over: give back what it holds, and tell its caller."""

    def _at(self, delay_s: float, callback: Callable[[], None]) -> None:
        if self.over:
            return
        self.stop_clock()
        self.timer = self._messenger.call_later(delay_s, callback)

    def _found(self, endpoint: Endpoint) -> None:
        self._search = None
        if not self.over:
            self.process_id = endpoint.process_id
            timer = self.timer
            ending(partial(self.found, endpoint), self._fail)()
            if self._is_late and self.timer is timer and not self.over:
                # It is not at an end with a peer that was not found: what has begun there has to be given up there.
                self.expire()

    def _fail(self, error: Exception) -> None:
        """A step of it has failed, so it ends."""
        self.end(error=error)

    def _not_found(self, error: BaseException) -> None:
        self._search = None
        self.end(error=error)

    def _expire(self) -> None:
        if self._search is None:
            self.expire()
        else:
            # The search has the same deadline, and knows better what there is instead.
            self._is_late = True
            self.soon(lambda: self.end(error=PeerNotFound(self.peer, self.waited_s)))


def renamed(error: BaseException | None, peer: str) -> BaseException | None:
    """The error, with a dead peer called by the name that the user knows."""
    return PeerDied(peer, error.reason) if isinstance(error, PeerDied) else error
