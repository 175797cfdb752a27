"""What a channel's server needs of the world around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.loop import Timer
from rlinf_scheduler.comm.peer import Reply, Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.parcels import Parcels


class Outside(Protocol):
    """A `Messenger`, or what stands between one and the server of a durable channel; see there for the methods."""

    @property
    def name(self) -> str:
        """Of this process."""

    @property
    def endpoint(self) -> Endpoint:
        """Of this process."""

    @property
    def parcels(self) -> Parcels:
        """What is sent and received."""

    def now(self) -> float:
        """The clock of its timers, in seconds."""

    def serve(self, service: str, handler: Callable[[Request], None], message_type: Any = ...) -> None:
        """Let a handler take what comes for a service."""

    def unserve(self, service: str) -> None:
        """Undo `serve`."""

    def notify(
        self, peer: Endpoint, service: str, head: Any, frames: Sequence[Buffer] = ..., *, snapshot: bool = ...
    ) -> None:
        """Send a one-way notice."""

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

    def on_peer_lost(self, callback: Callable[[str], None]) -> None:
        """Hear of processes that are gone."""

    def off_peer_lost(self, callback: Callable[[str], None]) -> None:
        """Undo `on_peer_lost`."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call after so many seconds."""

    def submit(self, callback: Callable[[], None]) -> None:
        """Call soon."""

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call whenever a descriptor is readable."""

    def unwatch(self, descriptor: int) -> None:
        """Undo `watch`."""

    def transports(self) -> dict[str, str]:
        """How each process is reached."""

    def condition(self, process_id: str) -> str:
        """How it stands with a process."""
