"""How long the end of a queue waits for items that are on their way to a consumer which does not answer.

Nobody else may have them: a consumer that was only stopped takes them when it goes on. But the others need not wait
for that. If it dies instead, they come back to their queue, and are there for whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable

from rlinf_scheduler.comm.loop import Timer
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.runtime import Runtime
from rlinf_scheduler.queueing import ChannelState, Instruction

logger = Reporter(__name__)

ARRIVAL_S = 30.0
LOOKS = 4


class ArrivalWatch:
    """Looks, once a queue has ended, what is on its way for too long. On the I/O thread only.

    Args:
        messenger: this process's messenger.
        name: the channel's, for the log.
        state: the channel's queues.
        carry_out: does what follows from an event.

    Attributes:
        since: since when each delivery is on its way, as far as it has looked.
    """

    def __init__(
        self,
        messenger: Runtime,
        name: str,
        state: ChannelState,
        carry_out: Callable[[list[Instruction]], None],
    ) -> None:
        self._messenger = messenger
        self._name = name
        self._state = state
        self._carry_out = carry_out
        self.since: dict[tuple[str, int], float] = {}
        self._timer: Timer | None = None
        self._on_duty = False

    @property
    def began(self) -> bool:
        """Whether a queue has ended."""
        return self._on_duty

    def begin(self) -> None:
        """A queue has ended: look from now on."""
        self._on_duty = True
        self.note_delivery()

    def note_delivery(self) -> None:
        """Items go to a getter, perhaps of a queue that has ended."""
        if self._on_duty and self._timer is None:
            self._look_later()

    def close(self) -> None:
        """Look no more."""
        self._on_duty = False
        if self._timer is not None:
            self._timer.cancel()

    def _look_later(self) -> None:
        self._timer = self._messenger.call_later(ARRIVAL_S / LOOKS, self._look)

    def _look(self) -> None:
        now = self._messenger.now()
        self.since = {delivery: self.since.get(delivery, now) for delivery in self._state.on_the_way()}
        for (client, ticket), since in self.since.items():
            if now - since >= ARRIVAL_S:
                logger.warning(
                    "channel '%s': an item is on its way to a consumer that has not answered for %.0f s; the end of "
                    "its queue does not wait for that",
                    self._name,
                    now - since,
                )
                self._carry_out(self._state.arrive(client, ticket))
        self._timer = None
        if self.since:
            self._look_later()
