"""The world around a part of this library: its clock and timers, and the processes that it talks with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from rlinf_scheduler.comm.disk import Disk
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.peer import Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.io_thread import MessageLoop
from rlinf_scheduler.comm.shm.payloads import Payloads

MethodT = TypeVar("MethodT", bound=Callable[..., None])


def timer(name: str) -> Callable[[MethodT], MethodT]:
    """Give a method the name by which a journal knows the timers that call it, whatever the method is called."""

    def named(method: MethodT) -> MethodT:
        method.timer_name = name  # type: ignore[attr-defined]
        return method

    return named


class Runtime(MessageLoop, Protocol):
    """A `Messenger`, or what stands between one and the server of a durable channel; see there for the methods."""

    @property
    def name(self) -> str:
        """Of this process."""

    @property
    def payloads(self) -> Payloads:
        """Return the payloads of this process, which are sent and received."""

    @property
    def disk(self) -> Disk:
        """Where files lie that outlive this process."""

    def unserve(self, service: str) -> None:
        """Undo `serve`."""

    def request(
        self,
        peer: Endpoint,
        service: str,
        head: Any,
        frames: Sequence[Buffer] = ...,
        *,
        timeout_s: float | None = ...,
        reply_type: Any = ...,
    ) -> Promise[Reply]:
        """Ask another process."""

    def off_peer_lost(self, callback: Callable[[str], None]) -> None:
        """Undo `on_peer_lost`."""

    def run_beside(self, function: Callable[..., object], *args: Any) -> None:
        """Run a function in a thread of its own."""

    def transports(self) -> dict[str, str]:
        """How each process is reached."""

    def condition(self, process_id: str) -> str:
        """How it stands with a process."""
