"""The holders of devices that have them to themselves, and the line behind them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlinf_scheduler.observe.process_stats import TurnNote


@dataclass(eq=False, slots=True)
class Turn:
    """One wish to have some devices alone.

    Attributes:
        process_id: whose it is,
        number: which of its wishes.
        who: how that process is called.
        devices: what it wants, all at once.
        since: when it began to wait or, once it has them, to have them; on the caller's clock, in seconds.
        granted: it has them.
    """

    process_id: str
    number: int
    who: str
    devices: frozenset[str]
    since: float
    granted: bool = False


class Turns:
    """Devices in turn: a process waits for all who asked before it for any of the same devices.

    Nobody has one device while it waits for another, and nobody is overtaken: so there is no deadlock and no
    starvation.

    >>> turns = Turns()
    >>> turns.ask(Turn("p1", 1, "rollout:0", frozenset({"0"}), since=0.0))
    True
    >>> turns.ask(Turn("p2", 1, "actor:0", frozenset({"0", "1"}), since=1.0))
    False
    >>> [turn.who for turn in turns.give_back("p1", 1, now=2.0)]
    ['actor:0']
    """

    def __init__(self) -> None:
        # In the order in which they were asked for.
        self._turns: list[Turn] = []

    def ask(self, turn: Turn) -> bool:
        """Put a wish in line; whether it is granted at once."""
        turn.granted = not self.before(turn)
        self._turns.append(turn)
        return turn.granted

    def before(self, turn: Turn) -> list[Turn]:
        """Those that `turn` waits for; the first of them have their devices."""
        place = self._turns.index(turn) if turn in self._turns else len(self._turns)
        return [other for other in self._turns[:place] if other.devices & turn.devices]

    def give_back(self, process_id: str, number: int, now: float) -> list[Turn]:
        """A process has done with its turn, or wants it no more; those that are granted by that."""
        return self._drop(lambda turn: (turn.process_id, turn.number) == (process_id, number), now)

    def forget(self, process_id: str, now: float) -> list[Turn]:
        """A process is gone; those that are granted by that."""
        return self._drop(lambda turn: turn.process_id == process_id, now)

    def _drop(self, is_over: Callable[[Turn], bool], now: float) -> list[Turn]:
        self._turns = [turn for turn in self._turns if not is_over(turn)]
        granted = [turn for turn in self._turns if not turn.granted and not self.before(turn)]
        for turn in granted:
            turn.granted, turn.since = True, now
        return granted

    def notes(self, now: float) -> list[TurnNote]:
        """The holders of devices, and the processes that wait for them."""
        return [
            TurnNote(turn.who, tuple(sorted(turn.devices)), now - turn.since, turn.granted)
            for turn in self._turns
        ]

    def __len__(self) -> int:
        return len(self._turns)
