"""What a channel's server keeps of each process that uses it."""

from __future__ import annotations

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.shortcut_door import ShortcutEnd
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.queueing import DirectOperations

# A client that cannot open shared memory for a moment gets bytes for so long, and longer each time.
MIN_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0


class KnownClient:
    """One process that uses the channel, and the news that have gathered for it."""

    __slots__ = (
        "accepted",
        "answers",
        "bytes_until",
        "direct",
        "endpoint",
        "frames",
        "name",
        "num_got",
        "num_put",
        "pause_s",
        "unreadable",
        "who",
    )

    def __init__(self, client: str, endpoint: Endpoint, name: str) -> None:
        self.endpoint = endpoint
        self.name = name
        # As the origins of its items name it: one object for all of them.
        self.who = name, client
        # Items accepted from it, and delivered to it, by this process.
        self.num_put = self.num_got = 0
        self.accepted: list[int] = []
        self.answers: list[wire.Answer] = []
        self.frames: list[Buffer] = []
        # Its puts that lie in shared memory which cannot be read here, and why.
        self.unreadable: dict[int, str] = {}
        # It could not open shared memory that it was sent: until then it gets bytes.
        self.bytes_until = 0.0
        self.pause_s = MIN_PAUSE_S
        self.direct: DirectOperations[ShortcutEnd, wire.Direct] = DirectOperations()

    def send_bytes(self, now: float) -> None:
        """It cannot open shared memory, and gets bytes for a while."""
        if now >= self.bytes_until:
            self.bytes_until = now + self.pause_s
            self.pause_s = min(2 * self.pause_s, MAX_PAUSE_S)
