"""Who is barred from a device, and for how long, on a clock of the test's own."""

from rlinf_scheduler.comm.loop import Timer
from rlinf_scheduler.devices.barred import BARRED_S, Barred


class Clock:
    def __init__(self):
        self.now_s = 0.0
        self.timers = []

    def call_later(self, delay_s, callback):
        self.timers.append((self.now_s + delay_s, timer := Timer(callback)))
        return timer

    def advance(self, seconds):
        self.now_s += seconds
        due = [timer for at_s, timer in self.timers if at_s <= self.now_s]
        self.timers = [(at_s, timer) for at_s, timer in self.timers if at_s > self.now_s]
        for timer in due:
            if timer.callback is not None:
                timer.callback()


def test_who_is_barred_twice_is_barred_until_the_later_time():
    clock = Clock()
    barred = Barred(clock.call_later)
    barred.add("a")
    clock.advance(BARRED_S - 1)
    barred.add("a")
    barred.add("b")
    clock.advance(2)
    assert "a" in barred
    clock.advance(BARRED_S - 2)
    assert not barred


def test_who_was_let_in_and_is_barred_again_is_not_let_in_by_the_first_timer():
    clock = Clock()
    barred = Barred(clock.call_later)
    barred.add("a")
    barred.discard("a")
    clock.advance(1)
    barred.add("a")
    clock.advance(BARRED_S - 1)
    assert "a" in barred
    clock.advance(1)
    assert "a" not in barred
