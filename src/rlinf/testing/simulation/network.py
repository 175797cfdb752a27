"""What lies between processes: messages of a pair arrive in order, late, and not while the pair is cut.

`Network` promises what a session between two processes promises: nothing lost and nothing twice across a cut, and an
end of the session when the cut outlasts the grace period or a process has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from rlinf.testing.simulation.world import Process, World

GRACE_US = 30_000_000
_LOST = object()


class Member(Protocol):
    """A process that others can reach."""

    name: str

    def receive(self, sender: str, message: Any) -> None:
        """A message came."""

    def lost(self, peer: str) -> None:
        """The session with `peer` has ended: nothing more comes, nothing more arrives."""


class _Way:
    """One direction between two processes."""

    __slots__ = ("delay_us", "ended", "free_at", "messages", "owed")

    def __init__(self, delay_us: Callable[[], int]) -> None:
        self.messages: deque[Any] = deque()
        self.owed = 0  # arrivals that a cut holds up
        self.free_at = 0
        self.delay_us = delay_us
        self.ended = False


class Network:
    """Sessions between processes, one for each pair that talks."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._members: dict[str, Any] = {}
        self._ways: dict[tuple[str, str], _Way] = {}
        self._cuts: dict[frozenset[str], int] = {}

    def join(self, member: Any) -> None:
        """Make a process known under its name."""
        self._members[member.name] = member

    def send(self, sender: str, receiver: str, message: Any) -> None:
        """Send; never fails, and arrives unless the session ends before."""
        way = self._way(sender, receiver)
        if not way.ended:
            way.messages.append(message)
            self._travel(sender, receiver, way)
        if not self._members[receiver].alive:
            self._say_lost(receiver, sender)

    def cut(self, one: str, other: str, for_us: int) -> None:
        """Let nothing through between two processes for a while; longer than the grace period: for ever."""
        pair = frozenset((one, other))
        self._cuts[pair] = self._cuts.get(pair, 0) + 1
        self._world.note("network", "is cut", one, other, for_us)
        if for_us >= GRACE_US:
            self.end_session(one, other, GRACE_US)
        self._world.schedule(self._world.now_us + for_us, None, self._heal, (one, other))

    def end_session(self, one: str, other: str, after_us: int) -> None:
        """Let both sides hold each other for dead, each at a moment of its own."""
        for receiver, sender in ((one, other), (other, one)):
            after = after_us + self._way(sender, receiver).delay_us()
            self._world.schedule(self._world.now_us + after, None, self._end, (sender, receiver))

    def buried(self, name: str) -> None:
        """A process has died: whoever talks with it hears of that after what it had sent."""
        for receiver in sorted({other for pair in self._ways if name in pair for other in pair} - {name}):
            self._say_lost(name, receiver)

    def _say_lost(self, sender: str, receiver: str) -> None:
        way = self._way(sender, receiver)
        if not way.ended:
            way.messages.append(_LOST)
            self._travel(sender, receiver, way)

    def _way(self, sender: str, receiver: str) -> _Way:
        way = self._ways.get((sender, receiver))
        if way is None:
            draw = self._world.randomness("network", sender, receiver).random
            # Mostly quick, sometimes slow: this is what reorders messages of different pairs.
            way = _Way(lambda: int(20 + 200 * draw()) if draw() < 0.9 else int(20_000 * draw()))
            self._ways[sender, receiver] = way
        return way

    def _travel(self, sender: str, receiver: str, way: _Way) -> None:
        way.free_at = max(way.free_at, self._world.now_us + way.delay_us())
        self._world.schedule(way.free_at, None, self._arrive, (sender, receiver, way))

    def _arrive(self, sender: str, receiver: str, way: _Way) -> None:
        if self._cuts.get(frozenset((sender, receiver))):
            way.owed += 1
            return
        if way.ended:
            return
        message = way.messages.popleft()
        if message is _LOST:
            self._end(sender, receiver)
        else:
            member: Process = self._members[receiver]
            member.later(0, self._members[receiver].receive, sender, message)

    def _heal(self, one: str, other: str) -> None:
        pair = frozenset((one, other))
        self._cuts[pair] -= 1
        if self._cuts[pair]:
            return
        self._world.note("network", "is whole", one, other)
        for sender, receiver in ((one, other), (other, one)):
            way = self._way(sender, receiver)
            for _ in range(way.owed):
                self._travel(sender, receiver, way)
            way.owed = 0

    def _end(self, sender: str, receiver: str) -> None:
        way = self._way(sender, receiver)
        if not way.ended:
            way.ended = True
            way.messages.clear()
            member: Process = self._members[receiver]
            member.later(0, self._members[receiver].lost, sender)
