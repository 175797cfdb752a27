"""A simulated channel that survives its process: what stands between its server and the world, and leads to it.

As `channel.journaled` and `channel.reconnecting_transport`, around the real `Stream` and `ServerStreams`. Writing takes
its time, and so does everything after it: the process dies before, in between and behind.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from rlinf_scheduler.queueing import ChannelData, ServerStreams, Snapshot, Stream
from simulator.channel_wire import CHANNEL, SERVER
from simulator.host import Host, Service
from simulator.machines import Machines

# Who does not come back to a server that was started again is gone after so long.
RETURN_US = 30_000_000
WRITE_US = 400
# So many turns are followed by an image.
IMAGE_SHARE = 0.5


class LookUp(NamedTuple):
    """A client has found the process that holds the channel."""

    heard: int
    begun: bool


class Found(NamedTuple):
    """The server has so much of what it has said; or has given it up."""

    heard: int
    lost: bool = False


class Said(NamedTuple):
    """A client says something."""

    number: int
    heard: int
    what: Any


class Told(NamedTuple):
    """A client is told something; `number` 0: only that so much of what it said is safe."""

    number: int
    heard: int
    what: Any = None


class Turn(NamedTuple):
    """What happened at a time by the channel's own clock: (what, arguments...)."""

    now_us: int
    records: list[tuple[Any, ...]]


class SimulatedJournal:
    """A file that outlives processes: an image, and the turns since.

    Attributes:
        image: of a server; None at first.
        num_done: so many turns were done by the process that wrote them, for the checks.
    """

    def __init__(self) -> None:
        self.num_done = 0
        self.image: Any = None
        self._turns: list[Turn] = []

    def append(self, turn: Turn) -> None:
        """Write what has happened."""
        self._turns.append(turn)

    def write_whole(self, image: Any, num_turns: int) -> None:
        """Write an image in the place of the first so many turns."""
        self.image, self._turns, self.num_done = image, self._turns[num_turns:], self.num_done - num_turns

    def turns(self) -> list[Turn]:
        """What is there after a death."""
        return list(self._turns)


class Server(Protocol):
    """What is told what happens."""

    def receive(self, sender: str, message: Any) -> None:
        """A client says something."""

    def joined(self, peer: str) -> None:
        """A client is there."""

    def lost(self, peer: str) -> None:
        """A client is gone."""

    def image(self) -> Any:
        """What it knows."""

    def resume(self, image: Any) -> None:
        """Go on with what another one knew."""


class JournaledHost:
    """The process of a durable channel's server, as the server sees it.

    Args:
        host: the process.
        journal: of the channel.
        machines: what is under test.

    Attributes:
        server: told what happens, once it was written down.
    """

    def __init__(self, host: Host, journal: SimulatedJournal, machines: Machines) -> None:
        self.server: Server
        self.name = SERVER
        self.world = host.world
        self.host = host
        self._journal = journal
        self._streams: ServerStreams[Any] = machines.streams()
        self._pending: list[tuple[Any, ...]] = []
        self._commit_due = self._live = self._is_writing = False
        self._present: set[str] = set()
        self._timers: dict[tuple[Any, ...], deque[tuple[int, Callable[..., None]]]] = {}
        self._outbox: list[tuple[str, int, Any]] = []
        self._to_tell: dict[str, None] = {}
        self._now_us = 0
        self._behind_us = 0
        self._soon: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._draw = host.world.randomness("journal", host.name)
        host.serve(CHANNEL, self)

    # -- for the server: as a `Host` -------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the process lives."""
        return self.host.alive

    @property
    def now_us(self) -> int:
        """The channel's own clock."""
        return self._now_us

    @property
    def heard_us(self) -> int:
        """When it heard what it is at, by the clock of the world: it may be stopped before it comes to that."""
        return self._now_us + self._behind_us

    def serve(self, _name: str, server: Any) -> None:
        """Tell a server what happens."""
        self.server = server

    def send(self, client: str, _service: str, what: Any) -> None:
        """Tell a client something."""
        number = self._streams.say(client, what)
        if number is not None and self._live:
            self._outbox.append((client, number, what))

    def later(self, delay_us: int, action: Callable[..., None], *args: Any) -> None:
        """Do something after a while."""
        if delay_us <= 10:  # at the end of the turn
            self._soon.append((action, args))
            return
        key = _key_of(action, args)
        self._timers.setdefault(key, deque()).append((self._now_us + delay_us, lambda: action(*args)))
        if self._live:
            self._arm(key, delay_us)

    # -- the life of the process -----------------------------------------------------------------

    def recover(self, on_untold: Callable[[], object]) -> None:
        """Come to where the last process was; `on_untold` is called before what that had no time to do."""
        if self._journal.image:
            image, streams, self._now_us, dues = copy.deepcopy(self._journal.image)
            for client, about in streams.items():
                self._streams.load(client, *about)
            self.server.resume(image)
            for key, timers in self._timers.items():
                self._timers[key] = deque((due_us, timers[0][1]) for due_us in dues.get(key, ()))
        turns = self._journal.turns()
        # Its clock stands since the last of them.
        self._behind_us = self.world.now_us - (turns[-1].now_us if turns else self._now_us)
        for number, turn in enumerate(turns):
            if number == self._journal.num_done:
                self.world.note(self.host.name, "was not told", len(turn.records))
                on_untold()
            self._apply(turn)
        self._journal.num_done = len(turns)

    def go_live(self) -> None:
        """Hear clients from now on."""
        self._live = True
        self._outbox.clear()
        self._behind_us = self.world.now_us - self._now_us
        for key, timers in self._timers.items():
            for due_us, _ in timers:
                self._arm(key, max(0, due_us - self._now_us))
        self.host.later(RETURN_US, self._give_up_absent)

    def note(self, *record: Any) -> None:
        """Something has happened: it is written down, and then done."""
        self._pending.append(record)
        self._commit_later()

    # -- what comes ------------------------------------------------------------------------------

    def receive(self, sender: str, message: LookUp | Said) -> None:
        """A message came."""
        if isinstance(message, LookUp):
            if self._streams.resume(sender, message.heard, begun=message.begun) is None:
                self.host.send(sender, CHANNEL, Found(0, lost=True))
                return
            if not self._streams.knows(sender):
                self.note("joined", sender)
            self.note("looks", sender, *message)
        elif sender in self._present and self._streams.take(sender, message.number):
            self.note("said", sender, *message)

    def lost(self, peer: str) -> None:
        """The session with `peer` has ended: nothing more comes from it, nothing more arrives there."""
        self._present.discard(peer)
        self.note("lost", peer)

    def _give_up_absent(self) -> None:
        for client in self._streams.clients:
            if client not in self._present:
                self.note("lost", client)

    def _arm(self, key: tuple[Any, ...], delay_us: int) -> None:
        self.host.later(delay_us, self.note, "rings", key)

    # -- turns -----------------------------------------------------------------------------------

    def _commit_later(self) -> None:
        if not self._commit_due:
            self._commit_due = True
            self.host.later(self._draw.randrange(WRITE_US), self._write)

    def _write(self) -> None:
        records, self._pending = self._pending, []
        turn = Turn(self.world.now_us - self._behind_us, records)
        lasting = [record for record in records if record[0] != "looks"]
        if lasting:
            self._journal.append(Turn(turn.now_us, lasting))
        self.host.later(self._draw.randrange(WRITE_US), self._do, turn)

    def _do(self, turn: Turn) -> None:
        self._commit_due = False
        self._journal.num_done = len(self._journal.turns())
        self._apply(turn)
        self._flush()
        for what, client, *message in turn.records:
            if what == "looks":
                self._welcome(client, *message)
        if self._draw.random() < IMAGE_SHARE:
            self._begin_image()
        if self._pending:
            self._commit_later()

    def _begin_image(self) -> None:
        """Look at everything now; it is written while others go on."""
        if self._is_writing:
            return
        self._is_writing = True
        self.world.note(self.host.name, "looks at everything")
        dues = {key: [due_us for due_us, _ in timers] for key, timers in self._timers.items()}
        image = self.server.image(), self._streams.contents(), self._now_us, dues
        num_turns = len(self._journal.turns())
        self.host.later(self._draw.randrange(10 * WRITE_US), self._write_image, image, num_turns)

    def _write_image(self, image: tuple[Any, ...], num_turns: int) -> None:
        self._is_writing = False
        self.world.note(self.host.name, "writes an image")
        (snapshot, *known), *rest = image
        self._journal.write_whole(((_written(snapshot), *known), *rest), num_turns)

    def _apply(self, turn: Turn) -> None:
        self._now_us = turn.now_us
        for what, *args in turn.records:
            match what:
                case "joined":
                    self._streams.join(*args)
                    self.server.joined(*args)
                case "said":
                    client, number, heard, message = args
                    self._to_tell[client] = None
                    if self._streams.apply(client, number, heard):
                        self.server.receive(client, message)
                case "lost":
                    self._streams.lose(args[0])
                    self._to_tell.pop(args[0], None)
                    self.server.lost(args[0])
                case "rings":
                    self._ring(*args)
                case "does":
                    name, *rest = args
                    getattr(self.server, name)(*rest)
        while self._soon:
            action, its_args = self._soon.pop(0)
            action(*its_args)

    def _ring(self, key: tuple[Any, ...]) -> None:
        timers = self._timers.get(key, deque())
        due = next((timer for timer in timers if timer[0] <= self._now_us), None)
        if due is not None:
            timers.remove(due)
            due[1]()

    def _welcome(self, client: str, heard: int, begun: bool) -> None:
        resumption = self._streams.resume(client, heard, begun=begun)
        if resumption is None or not self._streams.knows(client):
            self.host.send(client, CHANNEL, Found(0, lost=True))
            return
        self._present.add(client)
        self.host.send(client, CHANNEL, Found(resumption.heard))
        for number, what in resumption.again:
            self.host.send(client, CHANNEL, Told(number, resumption.heard, what))

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        to_tell, self._to_tell = self._to_tell, {}
        for client, number, what in outbox:
            if client in self._present:
                to_tell.pop(client, None)
                self.host.send(client, CHANNEL, Told(number, self._streams.heard(client), what))
        for client in to_tell:
            if client in self._present:
                self.host.send(client, CHANNEL, Told(0, self._streams.heard(client)))


def _written(snapshot: Snapshot) -> tuple[ChannelData, list[Any]]:
    """A record as it is when it was written and read, and its payloads."""
    data = msgspec.msgpack.encode(snapshot.data)
    return msgspec.msgpack.decode(data, type=ChannelData), [item.payload for item in snapshot.items]


def _key_of(action: Callable[..., None], args: tuple[Any, ...]) -> tuple[Any, ...]:
    inner = getattr(action, "func", None)
    if inner is not None:
        return inner.__qualname__, *action.args, *args  # type: ignore[attr-defined]
    return action.__qualname__, *(_key_of(arg, ()) if callable(arg) else arg for arg in args)


class SimulatedReconnectingTransport:
    """Leads from one process to the server of a durable channel, whichever process holds it.

    Args:
        host: the process.
        client: its side of the channel.
        find: which process holds the channel now, as the directory knows.
        machines: what is under test.
    """

    def __init__(self, host: Host, client: Service, find: Callable[[], Host], machines: Machines) -> None:
        self._host = host
        self._client = client
        self._find = find
        self._stream: Stream[Any] = machines.stream()
        self._server = ""
        self._found = self._begun = self._over = False
        host.serve(CHANNEL, self)
        self.look()

    def send(self, what: Any) -> None:
        """Say something to the server."""
        if self._over:
            return
        number = self._stream.say(what)
        if self._found:
            self._host.send(self._server, CHANNEL, Said(number, self._stream.heard, what))

    def look(self) -> None:
        """Ask the process that holds the channel."""
        holder = self._find()
        if not self._over and not self._found and holder.name != self._server and holder.alive:
            self._server = holder.name
            self._host.send(self._server, CHANNEL, LookUp(self._stream.heard, self._begun))

    def receive(self, sender: str, message: Found | Told) -> None:
        """A message came."""
        if sender != self._server or self._over:
            return
        if isinstance(message, Found):
            self._on_found(message)
            return
        self._stream.confirm(message.heard)
        if message.number and self._stream.hear(message.number):
            self._client.receive(SERVER, message.what)

    def _on_found(self, found: Found) -> None:
        if found.lost:
            self._lose()
            return
        self._found = self._begun = True
        self._stream.confirm(found.heard)
        for number, what in self._stream.after(found.heard):
            self._host.send(self._server, CHANNEL, Said(number, self._stream.heard, what))

    def lost(self, peer: str) -> None:
        """The session with `peer` has ended: nothing more comes from it, nothing more arrives there."""
        if peer != self._server or self._over:
            return
        self._found = False
        holder = self._find()
        if holder.name == self._server and holder.alive:
            self._lose()  # it lives, and holds this process for dead
        else:
            self.look()

    def _lose(self) -> None:
        self._over = True
        self._client.lost(SERVER)
