"""Who reads this process's arena: each process of the machine that connects is offered it, and says if it could.

Who could not is asked again after a while.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.loop import run_guarded
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.foreign import open_arena
from rlinf_scheduler.comm.shm.io_thread import Carrier

logger = Reporter(__name__)

SERVICE = "arena"
# Who could not open our arena is asked again after so long, then after twice as long, and so on.
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0


class Offer(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """The sender's arena may be read: process `pid` has it open as `fd`."""

    pid: int
    fd: int


class OfferAnswer(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """Why the receiver's arena cannot be opened; "" if it can."""

    problem: str


class BlockReturned(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """A block of the receiver's was released, for which it waited."""


class Offers:
    """Offers this process's arena to others, and answers their offers. On the I/O thread, but for questions.

    Args:
        on_returned: called when a block came back for which this process waits.

    Attributes:
        fd: the descriptor of the arena; -1 if there is none.
        connected: the processes of this machine that are connected.
        accepted: whether a process could open our arena, by its id; to be looked at from any thread.
    """

    def __init__(self, messenger: Carrier, on_returned: Callable[[], None]) -> None:
        self.fd = -1
        self.connected: dict[str, Endpoint] = {}
        self._messenger = messenger
        self._on_returned = on_returned
        self.accepted: dict[str, bool] = {}
        self._retry_s: dict[str, float] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._without = ""
        self._on_without: Callable[[str], None] = lambda _reason: None
        messenger.serve(SERVICE, self._on_message, Offer | OfferAnswer | BlockReturned)

    # -- from any thread -------------------------------------------------------------------------

    def when_known(self, peer: Endpoint, callback: Callable[[], None]) -> None:
        """Call `callback` on the I/O thread once it is known whether `peer` reads our arena."""
        self._messenger.submit(lambda: self._when_known(peer, callback))

    def distrust(self, process_id: str, reason: str) -> None:
        """Count a process for a while as one that cannot: it could not open what it was sent."""
        self.accepted[process_id] = False
        self.say_without(f"{self._messenger.peer_name(process_id)}: {reason}")
        self._messenger.submit(lambda: self._retry(process_id))

    def say_without(self, reason: str) -> None:
        """Warn once that something does without shared memory."""
        self._messenger.submit(lambda: self._say_without(reason))  # one thread, so that it is once

    def when_without(self, callback: Callable[[str], None]) -> None:
        """Call `callback` on the I/O thread with the reason when something does without shared memory, or if so now."""
        self._messenger.submit(lambda: self._when_without(callback))

    # -- the I/O thread --------------------------------------------------------------------------

    def _say_without(self, reason: str) -> None:
        if not self._without:
            self._without = reason
            logger.warning(
                "no shared memory: %s; large objects are copied through sockets instead",
                reason,
            )
            self._on_without(reason)

    def _when_without(self, callback: Callable[[str], None]) -> None:
        self._on_without = callback
        if self._without:
            callback(self._without)

    def begin(self, fd: int) -> str:
        """Offer an arena of this process from now on; why that cannot be, or ""."""
        own_id = self._messenger.endpoint.process_id
        problem = _try_to_open(own_id, os.getpid(), fd)
        if not problem:
            self.fd = fd
            self.accepted[own_id] = True
        return problem

    def on_connected(self, peer: Endpoint) -> None:
        """A process of this machine is connected: offer it our arena."""
        self.connected[peer.process_id] = peer
        self._offer(peer)

    def on_lost(self, process_id: str) -> None:
        """A process is gone."""
        self.connected.pop(process_id, None)
        self.accepted.pop(process_id, None)
        self._retry_s.pop(process_id, None)
        self._go_on(process_id)

    def _offer(self, peer: Endpoint) -> None:
        if self.fd >= 0:
            self._messenger.notify(peer, SERVICE, Offer(os.getpid(), self.fd))

    def _when_known(self, peer: Endpoint, callback: Callable[[], None]) -> None:
        process_id = peer.process_id
        elsewhere = peer.machine_id != self._messenger.endpoint.machine_id
        if self.fd < 0 or elsewhere or process_id in self.accepted:
            callback()
            return
        self._waiting.setdefault(process_id, []).append(callback)
        # Answered, or lost: either ends the wait.
        self._messenger.connect(peer)

    def _on_message(self, request: Request) -> None:
        match request.head:
            case Offer() as offer:
                self._answer(request, offer)
            case OfferAnswer(problem):
                self._on_answer(request, problem)
            case BlockReturned():
                self._on_returned()

    def _answer(self, request: Request, offer: Offer) -> None:
        problem = _try_to_open(request.peer_id, offer.pid, offer.fd)
        if problem:
            self.say_without(f"that of '{request.peer_name}' cannot be opened here ({problem})")
        peer = self.connected.get(request.peer_id)
        if peer is not None:  # it may have gone since it asked
            self._messenger.notify(peer, SERVICE, OfferAnswer(problem))

    def _on_answer(self, request: Request, problem: str) -> None:
        process_id = request.peer_id
        self.accepted[process_id] = not problem
        if problem:
            self.say_without(f"'{request.peer_name}' cannot open that of this process ({problem})")
            self._retry(process_id)
        else:
            self._retry_s.pop(process_id, None)
        self._go_on(process_id)

    def _retry(self, process_id: str) -> None:
        """Offer our arena again later, to a process that could not open it."""
        if process_id in self.connected:
            delay_s = self._retry_s.get(process_id, FIRST_RETRY_S)
            self._retry_s[process_id] = min(2 * delay_s, LAST_RETRY_S)
            self._messenger.call_later(delay_s, lambda: self._offer_again(process_id))

    def _offer_again(self, process_id: str) -> None:
        peer = self.connected.get(process_id)
        if peer is not None and not self.accepted.get(process_id, True):
            self._offer(peer)

    def _go_on(self, process_id: str) -> None:
        for callback in self._waiting.pop(process_id, ()):
            run_guarded(callback)


def _try_to_open(owner_id: str, pid: int, fd: int) -> str:
    """Why an arena cannot be read here; "" if it can."""
    try:
        open_arena(owner_id, pid, fd).seat.leave()
    except (OSError, ValueError) as error:
        return str(error)
    return ""
