"""Where a channel's server hears of the channel's producers. On the I/O thread only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.spec import ChannelSpec
from rlinf_scheduler.queueing import Producers


class ProducerDesk:
    """Keeps the time that `queueing.Producers` does not know.

    Args:
        call_later: calls a function on the I/O thread after so many seconds.
        spec: the channel.
        producers: its producers.
        on_over: called when all producers are done.
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], Any],
        spec: ChannelSpec,
        producers: Producers,
        on_over: Callable[[], None],
    ) -> None:
        self._call_later = call_later
        self._spec = spec
        self._on_over = on_over
        self._producers = producers

    def answer(
        self, client: str, message: control_wire.Join | control_wire.Leave
    ) -> control_wire.Joined | None:
        """Let a client be a producer, or be one no more."""
        if isinstance(message, control_wire.Join):
            return control_wire.Joined(self._join(client, message))
        vacancy = self._producers.leave(client, message.number, failed=message.failed)
        self._after_leaving([] if vacancy is None else [vacancy])
        return None

    def lose(self, client: str) -> None:
        """A client is gone."""
        self._after_leaving(self._producers.lose(client))

    def resume(self) -> None:
        """Keep the places for successors that another desk has kept."""
        for vacancy in self._producers.vacancies:
            self._call_later(self._spec.successor_s, partial(self._give_up, vacancy))

    def _join(self, client: str, message: control_wire.Join) -> str:
        if not self._spec.producers:
            return "its producers are not counted; create it with producers=n"
        if self._producers.join(client, message.number, message.name):
            return ""
        return f"there is no place for another producer: {self._producers.describe()}"

    def _after_leaving(self, vacancies: list[int]) -> None:
        for vacancy in vacancies:
            self._call_later(self._spec.successor_s, partial(self._give_up, vacancy))
        if self._producers.over:
            self._on_over()

    def _give_up(self, vacancy: int) -> None:
        self._producers.give_up(vacancy)
        self._after_leaving([])
