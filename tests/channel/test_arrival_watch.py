"""The watch over what is on its way when a queue has ended: it looks as long as there is something to see."""

from __future__ import annotations

from rlinf_scheduler.channel.arrival_watch import ArrivalWatch
from rlinf_scheduler.queueing import ChannelState


class Clock:
    """The time, and who is to be called when."""

    def __init__(self):
        self.time = 0.0
        self.due = []

    def now(self):
        return self.time

    def call_later(self, after_s, call):
        self.due.append((self.time + after_s, call))
        return object()

    def run(self, until):
        while self.due and self.due[0][0] <= until:
            self.time, call = self.due.pop(0)
            call()
        self.time = until


def watched():
    clock, state, out = Clock(), ChannelState(), []
    return clock, state, out, ArrivalWatch(clock, "channel", state, out.extend)


def test_it_sleeps_where_nothing_is_on_its_way():
    clock, state, _, watch = watched()
    state.end("queue")
    watch.begin()
    clock.run(1000.0)
    assert clock.due == []


def test_what_is_delivered_after_the_end_is_looked_after():
    clock, state, out, watch = watched()
    state.put("p", 1, "queue", "item")
    state.end("queue")
    watch.begin()
    clock.run(1000.0)
    state.get("stopped", 1, "queue")
    watch.note_delivery()
    state.get("waits", 1, "queue")
    clock.run(1020.0)
    assert out == []
    clock.run(1100.0)
    assert [each.client for each in out] == ["waits"]
    assert clock.due == []


def test_before_an_end_nothing_is_looked_after():
    clock, _, _, watch = watched()
    watch.note_delivery()
    assert clock.due == []
