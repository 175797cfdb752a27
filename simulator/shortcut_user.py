"""A user's thread that asks a channel's server by itself, reads the answer, and is interrupted anywhere."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import Any

from rlinf_scheduler.queueing import Accept, Deliver
from rlinf_scheduler.queueing.client import Ending
from simulator import channel_wire as wire
from simulator.channel_server import ChannelServer
from simulator.shortcut import Way
from simulator.users import UserCall, Users

# How many of the calls that could go by a shortcut do.
SHARE = 0.9
# So many break while their server lives.
BROKEN_SHARE = 0.1
# Of those that are interrupted at once, so many were not sent yet.
UNSENT_SHARE = 0.5


class DirectUsers(Users):
    """The users of a process, as the thread that asks the server by itself knows them.

    Attributes:
        cut_off: the server is gone, or holds this process for dead.
    """

    cut_off: bool

    @abstractmethod
    def sent_before(self) -> int | None:
        """What an operation stands behind; None if that is not sent yet."""

    @abstractmethod
    def goes_by_itself(self, call: UserCall) -> None:
        """A call is about to be sent by its thread."""

    @abstractmethod
    def know_direct(self, call: UserCall) -> None:
        """The I/O thread is to know of it."""

    @abstractmethod
    def query_outcome(self, call: UserCall) -> None:
        """The thread cannot wait for the answer."""

    @abstractmethod
    def expect(self, call: UserCall) -> None:
        """The items come the usual way."""

    @abstractmethod
    def begin_anew(self, call: UserCall) -> None:
        """The call has put or taken nothing, and goes the usual way."""


class ShortcutUser:
    """The shortcut of the one thread of a process that blocks.

    Args:
        client: the process's side of the channel.
        server: what it leads to.
    """

    def __init__(self, client: DirectUsers, server: ChannelServer) -> None:
        self._client = client
        self._server = server
        self._draw = client.world.randomness("shortcut", client.name)
        # In some stories there are none.
        self._share = SHARE if self._draw.random() < 0.8 else 0.0
        self._own: Way | None = None
        # What went by a shortcut and has not ended; and whose answer its thread waits for.
        self._under_way: dict[int, Way] = {}
        self._waits: UserCall | None = None
        self._sent: deque[UserCall] = deque()

    # -- the user's thread ---------------------------------------------------------------------------

    def take(self, call: UserCall) -> bool:
        """Send a call by the shortcut, if there is one and it may; whether it did."""
        after = self._client.sent_before()
        if call.step.kind in (*wire.REQUESTS, "lease") or not call.step.blocking or not after:
            return False
        if self._draw.random() >= self._share:
            return False
        way = self._own or self._server.connect(self._client.host)
        if way is None:
            return False
        self._own = None
        way.on_answers = self._on_answers
        step = call.step
        self._client.goes_by_itself(call)
        self._under_way[step.number] = way
        self._waits = call
        operation = wire.opening(call)
        if type(operation) is wire.Put:  # its bytes, or where they lie
            operation = operation._replace(item=step.number)
        if step.kind != "put":
            self._sent.append(call)
            self._client.host.later(self._draw.randrange(60), self._client.on_turn)
        if step.drop != "begun" or self._draw.random() >= UNSENT_SHARE:
            self._client.world.note(self._client.name, "sends", step.kind, step.number, "after", after)
            way.call(wire.Direct(after, operation))
        if self._draw.random() < BROKEN_SHARE:
            self._server.host.later(self._draw.randrange(500), self._server.close_way, way)
        if call.limit_us is not None:
            self._client.host.later(call.limit_us, self._on_late, call)
        return True

    def ended(self, call: UserCall) -> None:
        """The thread has returned from a call, or was interrupted in it: whatever it still had is dropped."""
        if self._waits is call:
            self._waits = None
        way = self._under_way.get(call.step.number)
        if way is not None and way is not self._own:
            way.leave()

    def _on_answers(self, way: Way) -> None:
        call = self._waits
        if call is None or self._under_way.get(call.step.number) is not way:
            return
        if way.answers:
            self._waits = None
            self._own = way
            self._read(call, way.answers.popleft())
        elif way.broken:
            self._query_outcome(call)

    def _on_late(self, call: UserCall) -> None:
        if self._waits is call:
            self._query_outcome(call)

    def _query_outcome(self, call: UserCall) -> None:
        self._waits = None
        self._client.hand_over(self._client.query_outcome, call)

    def _read(self, call: UserCall, answer: Any) -> None:
        client = self._client
        match answer:
            case Accept():
                client.tell(call, Ending.ACCEPTED, None)
            case Deliver(_, _, items):
                call.items = [item.payload for item in items]
                if answer.part is not None:
                    call.part_step = answer.part.step
                call.ended_us = client.world.now_us
                client.host.later(self._draw.randrange(100), client.wake, call)
            case wire.Elsewhere():
                client.hand_over(client.expect, call)
            case wire.Again():
                client.begin_anew(call)
            case _:
                client.tell(call, Ending.REFUSED, answer.reason.value)
        # Soon somebody looks what became of it.
        client.host.later(2_000, client.on_turn)

    # -- the I/O thread ------------------------------------------------------------------------------

    def note(self) -> None:
        """Know of the gets that the thread has sent, or is about to."""
        while self._sent:
            call = self._sent.popleft()
            if not self._client.cut_off:
                self._client.know_direct(call)

    def knows(self, call: UserCall) -> bool:
        """Whether a call went by a shortcut."""
        return call.step.number in self._under_way

    def forget(self, call: UserCall) -> None:
        """A call goes on the usual way."""
        way = self._under_way.pop(call.step.number, None)
        if way is not None and way is not self._own:
            way.leave()

    def break_off(self, call: UserCall) -> bool:
        """Let the shortcut of a call break while its server lives; whether it had one."""
        way = self._under_way.get(call.step.number)
        if way is not None:
            self._server.close_way(way)
        return way is not None

    def lose(self) -> None:
        """The server is gone: nobody waits for its answer."""
        for way in self._under_way.values():
            way.break_off()
