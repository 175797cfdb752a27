"""Makers and trainers of a queue that admits: programs that ask, work, send slots, take, announce, and are interrupted.

Each runs in a thread of its process, and calls a `Channel`; what it was doing when its process dies is lost with it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from rlinf_scheduler.channel.channel import Channel
from rlinf_scheduler.errors import (
    ChannelArgumentError,
    ChannelClosed,
    ChannelLost,
    ChannelTimeout,
    ChannelUnanswered,
    LeaseExpired,
    SlotExpired,
    VersionTooEarly,
)
from simulator.processes import ProductProcess
from simulator.threads import UserThread

FRESH = "fresh"
MAX_PAUSE_US = 20_000
# How often a trainer that may not go on tries again.
MAX_TRIES = 6
# At so many places at most a call may be interrupted.
NUM_POINTS = 6
DEADLINES_S = (None, None, None, 0.001, 0.02)
OVER = (ChannelClosed, ChannelLost)
LEFT = (KeyboardInterrupt, ChannelTimeout, ChannelUnanswered, LeaseExpired, SlotExpired)


class Program:
    """A thread of a process, and what it calls.

    Args:
        process: where it runs.
        channel: which it uses.
        name: of its dice.
        body: what it does.

    Attributes:
        is_stopped: it begins nothing any more.
    """

    def __init__(
        self, process: ProductProcess, channel: Channel, name: object, body: Callable[[Channel], None]
    ) -> None:
        self.host = process.host
        self.name = f"{name}"
        self.channel = channel
        self.draw = process.host.world.randomness("program", process.host.name, name)
        self.is_stopped = False
        self.thread = UserThread(process.host, -1, self.draw, lambda _thread: None)
        self.thread.session = process.session
        self.host.later(1, self.thread.run, self._run, body)

    def _run(self, body: Callable[[Channel], None]) -> None:
        body(self.channel)

    def stop(self) -> None:
        """Wait for nothing any more."""
        self.is_stopped = True
        if self.host.alive:
            self.thread.interrupt()

    def sleep(self, within_us: float = MAX_PAUSE_US) -> None:
        """Do something else for a while."""
        self.thread.block((1 + self.draw.randrange(int(within_us))) / 1e6)

    def may_be_interrupted(self, share: float) -> None:
        """Let the next call be interrupted, perhaps."""
        self.thread.points_left = self.draw.randrange(NUM_POINTS) if self.draw.random() < share else None


class Maker:
    """A loop around `admit` and `put`; some makers drop slots, and leave calls.

    Args:
        num_items: so many it makes.
        mean_us: how long one takes, about; some much longer.
        max_lags: it chooses among them.
        sent: slots that makers have sent, for others to put with.
    """

    program: Program

    def __init__(self, num_items: int, mean_us: int, max_lags: tuple[int, ...], sent: list[bytes]) -> None:
        self._num_items = num_items
        self._mean_us = mean_us
        self._max_lags = max_lags
        self._sent = sent

    def run(self, channel: Channel) -> None:
        """Make items, one after the other."""
        for _ in range(self._num_items):
            try:
                self._make(channel)
            except OVER:
                return
            except LEFT:
                if self.program.is_stopped:
                    return

    def _make(self, channel: Channel) -> None:
        program, draw = self.program, self.program.draw
        program.sleep()
        program.may_be_interrupted(0.1)
        slot = channel.admit(draw.choice(self._max_lags), FRESH, timeout_s=draw.choice(DEADLINES_S))
        program.thread.points_left = None
        self._work()
        fate = draw.random()
        if fate < 0.15:
            return
        if fate < 0.45:
            self._sent.append(pickle.dumps(slot))
            del slot
            program.sleep()
            slot = pickle.loads(draw.choice(self._sent))
            self._work()
            if draw.random() < 0.3:
                slot.give_back()
                return
        program.may_be_interrupted(0.1)
        channel.put(b"an item", queue_name=FRESH, slot=slot)
        program.thread.points_left = None

    def _work(self) -> None:
        self.program.sleep(1 + self._mean_us * min(50.0, self.program.draw.paretovariate(1.1)))


class _Failed(Exception):
    """What is on lease cannot be used."""


class Taker:
    """A loop around `get_batch` and leases; a trainer says which version it is at.

    Args:
        batch_items: how many items a version takes.
        num_steps: so many it makes.
        begins_at: with which version; None for one that is no trainer.
        is_hasty: it says the next version when it has half of the items of one.
    """

    program: Program

    def __init__(
        self, batch_items: int, num_steps: int, begins_at: int | None = None, *, is_hasty: bool = False
    ) -> None:
        self._batch_items = batch_items
        self._num_steps = num_steps
        self._begins_at = begins_at
        self._num_wanted = batch_items // 2 if is_hasty else batch_items

    def run(self, channel: Channel) -> None:
        """Take items, as a trainer or as any other consumer."""
        try:
            if self._begins_at is None:
                for _ in range(self._num_steps):
                    self._take(channel, 1)
            else:
                self._train(channel, self._begins_at)
        except (*OVER, KeyboardInterrupt):
            return

    def _train(self, channel: Channel, version: int) -> None:
        self._say(channel, version, begins=True)
        for _ in range(self._num_steps):
            num_got = num_tries = 0
            while num_tries < MAX_TRIES:
                while num_got < self._num_wanted:
                    wanted = self.program.draw.choice((self._num_wanted - num_got, 1))
                    num_got += self._take(channel, wanted)
                if self._say(channel, version + 1):
                    version += 1
                    break
                num_tries, num_got = num_tries + 1, num_got - 1
            else:
                return

    def _say(self, channel: Channel, version: int, *, begins: bool = False) -> bool:
        """Say a version; whether that is the present one now."""
        program = self.program
        program.sleep(1_000)
        try:
            timeout_s = program.draw.choice(DEADLINES_S)
            channel.set_version(
                version, FRESH, batch_items=self._batch_items, begins=begins, timeout_s=timeout_s
            )
        except (VersionTooEarly, ChannelArgumentError, ChannelTimeout, ChannelUnanswered):
            return False
        return True

    def _use(self, is_done: bool) -> None:
        if not is_done:
            raise _Failed

    def _take(self, channel: Channel, num_items: int) -> int:
        """Take items, or leave them; how many are taken."""
        program, draw = self.program, self.program.draw
        program.sleep()
        ttl_s = draw.choice((0, 0, 0.005, 1.0))
        bounds: dict[str, Any] = {"min_items": num_items, "max_items": num_items}
        bounds["timeout_s"] = draw.choice(DEADLINES_S)
        is_done = draw.random() < 0.85
        try:
            if ttl_s:
                with channel.lease(FRESH, ttl_s=ttl_s, **bounds) as lease:
                    program.sleep()
                    self._use(is_done)
                    return len(lease.items)
            program.thread.leaves_at_end = not is_done
            return len(channel.get_batch(queue_name=FRESH, **bounds))
        except (*LEFT, _Failed):
            if program.is_stopped:
                raise KeyboardInterrupt from None
            return 0
        finally:
            program.thread.leaves_at_end = False
