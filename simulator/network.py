"""What lies between processes: streams that are late, are cut, stall, and go on; a pair's messages stay in order."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from simulator.world import Process, World

SILENT_US = 4_000_000
"""A stream over which nothing comes for so long is silent."""
DIAL_TIMEOUT_US = 1_000_000
_CLOSED = object()


def delays(draw: Random) -> Callable[[], int]:
    """How long each message of a pair is on its way: mostly a moment, which reorders what different pairs say."""
    random = draw.random
    return lambda: int(20 + 200 * random()) if random() < 0.9 else int(20_000 * random())


class End(Protocol):
    """What a process does with its streams."""

    process: Process

    def made(self, stream: Stream) -> None:
        """A stream that this process began leads to the other machine now."""

    def not_made(self, stream: Stream, *, ended: bool) -> None:
        """A stream that this process began could not be made; `ended`: because the other is not there any more."""

    def heard(self, stream: Stream, frame: Any) -> None:
        """Something came."""

    def closed(self, stream: Stream, *, ended: bool) -> None:
        """A stream has ended; `ended`: because the other has, and this is known."""

    def silent(self, stream: Stream, silent_s: float) -> None:
        """A stream stands, and nothing has come for a while."""

    def alive(self, stream: Stream) -> None:
        """The other machine has answered a probe."""


class Stream:
    """A connection between two processes, by their names; the first has begun it."""

    __slots__ = ("broken", "ends", "free_at", "held", "made")

    def __init__(self, dialler: str, acceptor: str) -> None:
        self.ends = (dialler, acceptor)
        self.made = False
        self.broken = False  # what is under way is lost
        self.free_at = dict.fromkeys(self.ends, 0)
        self.held: list[tuple[str, Any]] = []  # what has arrived at a stall: (for whom, what)

    def other(self, name: str) -> str:
        """Return the other end's name."""
        return self.ends[name == self.ends[0]]


class Network:
    """Makes streams between processes and breaks them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ends: dict[str, Any] = {}  # End
        self._streams: dict[frozenset[str], list[Stream]] = {}
        self._obstacles: dict[frozenset[str], int] = {}
        self._delays: dict[tuple[str, str], Callable[[], int]] = {}
        # How long each pair could not talk, all in all.
        self.unreachable_us: dict[frozenset[str], int] = {}
        self._clear_us: dict[frozenset[str], int] = {}
        self._since_us: dict[frozenset[str], int] = {}
        # Those of processes that run the product: what stands between is the same for all.
        self.kernels: list[Any] = []

    def join(self, end: End) -> None:
        """Make a process known under its name."""
        self._ends[end.process.name] = end

    def end_of(self, name: str) -> Any:
        """Return what a process does with its streams."""
        return self._ends[name]

    def clear_since_us(self, pair: frozenset[str]) -> int:
        """Return since when nothing stands between two processes."""
        return self._world.now_us if self._obstacles.get(pair) else self._clear_us.get(pair, 0)

    def is_obstructed(self, pair: frozenset[str]) -> bool:
        """Whether two processes cannot talk now."""
        return self._obstacles.get(pair, 0) > 0

    def obstructed_since_us(self, pair: frozenset[str]) -> int:
        """Return since when two processes cannot talk."""
        return self._since_us[pair]

    def dial(self, dialler: str, acceptor: str) -> Stream:
        """Begin a stream; `made` or `not_made` follows."""
        stream = Stream(dialler, acceptor)
        self._world.schedule(
            self._world.now_us + self._delay_us(dialler, acceptor), None, self._connect, (stream,)
        )
        return stream

    def send(self, stream: Stream, sender: str, frame: Any) -> None:
        """Send over a stream; it arrives unless the stream breaks before."""
        receiver = stream.other(sender)
        at_us = max(stream.free_at[receiver], self._world.now_us + self._delay_us(sender, receiver))
        stream.free_at[receiver] = at_us
        self._world.schedule(at_us, None, self._arrive, (stream, receiver, frame))

    def close(self, stream: Stream, by: str) -> None:
        """Close a stream; the other end finds that after what had been sent before."""
        if stream.made:
            self.send(stream, by, _CLOSED)

    def cut(self, one: str, other: str, for_us: int) -> None:
        """Break all streams between two processes, and let none be made for a while."""
        self._world.note("network", "is cut", one, other, for_us)
        for stream in self._streams.pop(frozenset((one, other)), ()):
            stream.broken = True
            for name in stream.ends:
                self._later(self._delay_us(one, other), name, self._closed, stream, name)
        for kernel in self.kernels:
            kernel.cut(frozenset((one, other)))
        self._obstruct(one, other, for_us)

    def stall(self, one: str, other: str, for_us: int) -> None:
        """Hold up all that two processes say to each other for a while; streams survive it."""
        self._world.note("network", "stalls", one, other, for_us)
        if for_us > SILENT_US:
            for stream in self._streams.get(frozenset((one, other)), ()):
                for name in stream.ends:
                    self._later(SILENT_US, name, self._silent, stream, name)
        for kernel in self.kernels:
            kernel.stalled(frozenset((one, other)), for_us)
        self._obstruct(one, other, for_us)

    def buried(self, name: str) -> None:
        """A process has died: its streams end, after what it had sent."""
        for pair in [pair for pair in self._streams if name in pair]:
            for stream in list(self._streams[pair]):
                self.close(stream, name)
        for kernel in self.kernels:
            kernel.buried(name)

    # -- inside ----------------------------------------------------------------------------------

    def _later(self, delay_us: int, name: str, action: Callable[..., None], *args: Any) -> None:
        self._ends[name].process.later(delay_us, action, *args)

    def _delay_us(self, sender: str, receiver: str) -> int:
        draw = self._delays.get((sender, receiver))
        if draw is None:
            draw = self._delays[sender, receiver] = delays(
                self._world.randomness("network", sender, receiver)
            )
        return draw()

    def _obstruct(self, one: str, other: str, for_us: int) -> None:
        pair = frozenset((one, other))
        if not self.is_obstructed(pair):
            self._since_us[pair] = self._world.now_us
        self._obstacles[pair] = self._obstacles.get(pair, 0) + 1
        self.unreachable_us[pair] = self.unreachable_us.get(pair, 0) + for_us
        self._world.schedule(self._world.now_us + for_us, None, self._clear, (pair,))

    def _clear(self, pair: frozenset[str]) -> None:
        self._obstacles[pair] -= 1
        if self._obstacles[pair]:
            return
        self._world.note("network", "is whole", *sorted(pair))
        self._clear_us[pair] = self._world.now_us
        for kernel in self.kernels:
            kernel.cleared(pair)
        for stream in self._streams.get(pair, ()):
            held, stream.held = stream.held, []
            for receiver, frame in held:
                self._hand(stream, receiver, frame)
            for name in stream.ends:
                self._later(0, name, self._ends[name].alive, stream)

    def _connect(self, stream: Stream) -> None:
        dialler, acceptor = stream.ends
        end = self._ends[dialler]
        if not end.process.alive:
            return
        if self._obstacles.get(frozenset(stream.ends)):
            self._later(DIAL_TIMEOUT_US, dialler, lambda: end.not_made(stream, ended=False))
        elif not self._ends[acceptor].process.alive:
            self._later(0, dialler, lambda: end.not_made(stream, ended=True))
        else:
            stream.made = True
            self._streams.setdefault(frozenset(stream.ends), []).append(stream)
            self._later(0, dialler, end.made, stream)

    def _arrive(self, stream: Stream, receiver: str, frame: Any) -> None:
        if stream.broken:
            return
        if self._obstacles.get(frozenset(stream.ends)):
            stream.held.append((receiver, frame))
        else:
            self._hand(stream, receiver, frame)

    def _hand(self, stream: Stream, receiver: str, frame: Any) -> None:
        if frame is _CLOSED:
            self._later(0, receiver, self._closed, stream, receiver)
        else:
            self._later(0, receiver, self._ends[receiver].heard, stream, frame)

    def _closed(self, stream: Stream, name: str) -> None:
        if stream in self._streams.get(frozenset(stream.ends), ()):
            self._streams[frozenset(stream.ends)].remove(stream)
        # On one machine the kernel says whether a process has ended; between two it does not.
        on_one_machine = self._world.randomness("machine", *stream.ends).random() < 0.5
        ended = on_one_machine and not self._ends[stream.other(name)].process.alive
        self._ends[name].closed(stream, ended=ended)

    def _silent(self, stream: Stream, name: str) -> None:
        if self._obstacles.get(frozenset(stream.ends)) and not stream.broken:
            self._ends[name].silent(stream, SILENT_US / 1e6)
