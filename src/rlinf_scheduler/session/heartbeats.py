"""Every process tells the job's home that its I/O thread runs; what that makes of it is in `heartbeat_monitor`."""

from __future__ import annotations

import msgspec

from rlinf_scheduler.comm import Endpoint, Messenger

BEAT = "job.beat"
# Every process says so often that its I/O thread runs, in seconds.
BEAT_S = 2.0


class Beat(msgspec.Struct, frozen=True, array_like=True):
    """The sender's I/O thread runs.

    Attributes:
        give_up_after_s: after how many seconds without a beat it counts as dead; None: never.
    """

    give_up_after_s: float | None = None


class Heart:
    """What tells the job's home that this process's I/O thread runs.

    Args:
        home: whom it tells.
        give_up_after_s: see `Beat`.
    """

    def __init__(self, messenger: Messenger, home: Endpoint, give_up_after_s: float | None) -> None:
        self._messenger = messenger
        self._home = home
        self._beat_of = Beat(give_up_after_s)
        messenger.submit(self._beat)

    def _beat(self) -> None:
        if not self._messenger.why_closed:
            self._messenger.notify(self._home, BEAT, self._beat_of)
            self._messenger.call_later(BEAT_S, self._beat)
