"""The I/O thread and the messenger of a process, as far as shared memory needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.loop import Clock
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.promise import Promise

# The I/O thread has to answer in this time.
ANSWER_S = 10.0

T = TypeVar("T")


class IoThread(Clock, Protocol):
    """The I/O thread: its clock, and what runs on it."""

    def submit(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the I/O thread soon; from any thread, without a lock."""

    def on_io_thread(self) -> bool:
        """Whether the caller runs on it."""


class MessageLoop(Clock, Protocol):
    """What runs in one thread of a process, be it simulated: callbacks, descriptors that are watched, and messages."""

    @property
    def endpoint(self) -> Endpoint:
        """This process."""

    def submit(self, callback: Callable[[], None]) -> None:
        """Call `callback` soon; from any thread."""

    def serve(self, service: str, handler: Callable[[Request], None], message_type: Any = ...) -> None:
        """Let `handler` take the messages for `service`."""

    def notify(
        self, peer: Endpoint, service: str, head: Any, frames: Sequence[Buffer] = ..., *, snapshot: bool = ...
    ) -> None:
        """Send a notice; never blocks."""

    def on_peer_lost(self, callback: Callable[[str], None]) -> None:
        """Call `callback(process_id)` for each process that is gone."""

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `descriptor` is readable."""

    def unwatch(self, descriptor: int) -> None:
        """Undo `watch`."""


class Carrier(IoThread, MessageLoop, Protocol):
    """A messenger."""

    def connect(self, peer: Endpoint) -> None:
        """Connect to `peer` now."""

    def peer_name(self, process_id: str) -> str:
        """How a process calls itself."""


def run_at(io_thread: IoThread, function: Callable[[], T]) -> T:
    """Let the I/O thread run a function, and wait for what it gives.

    Raises:
        OSError: the I/O thread does not answer, or the function raised it.
        ValueError: the function raised it.
    """
    if io_thread.on_io_thread():
        return function()
    answer: Promise[T] = Promise()
    io_thread.submit(lambda: answer.set_from(function))
    if not answer.wait(ANSWER_S):
        raise OSError("the I/O thread does not answer")
    return answer.result(0)
