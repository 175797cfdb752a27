"""A connection of a thread's own, which there is not any more: one thread owns every connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.framing import Buffer
from rlinf.scheduler.errors import CommError


class BlockingLink:
    """Never there: who asks for it falls back to the messenger.

    Raises:
        CommError: always.
    """

    endpoint: Endpoint

    def __init__(self, _messenger: Any, _peer: Endpoint, _timeout_s: float) -> None:
        raise CommError("a thread has no connection of its own")

    def request(self, service: str, head: Any, timeout_s: float) -> Any:
        """Never called."""
        raise NotImplementedError

    def send(self, pieces: Sequence[Buffer]) -> None:
        """Never called."""
        raise NotImplementedError

    def receive(self, timeout_s: float | None = None) -> Any:
        """Never called."""
        raise NotImplementedError

    def shut(self) -> None:
        """Never called."""

    def close(self) -> None:
        """Never called."""
