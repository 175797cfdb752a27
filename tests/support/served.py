"""A channel's server over a runtime that a test drives: time goes on when the test says so, and nothing is sent."""

from rlinf_scheduler.channel.features import FEATURES
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.channel.spec import ChannelSpec


class Timer:
    def __init__(self, due, callback):
        self.due = due
        self.callback = callback

    def cancel(self):
        self.callback = None


class DrivenRuntime:
    """The clock and timers of a `Runtime`; what is sent goes nowhere."""

    def __init__(self):
        self.time = 100.0
        self.timers = []

    def now(self):
        return self.time

    def call_later(self, delay_s, callback):
        self.timers.append(Timer(self.time + delay_s, callback))
        return self.timers[-1]

    def submit(self, callback):
        self.call_later(0, callback)

    def _ignore(self, *_args, **_options):
        pass

    serve = unserve = notify = on_peer_lost = off_peer_lost = _ignore

    @property
    def waiting(self):
        """The timers that are to ring."""
        return [each for each in self.timers if each.callback]

    def ring_next(self, late_s=0.0):
        """Let the next timer ring; nothing has run for so long after it was due."""
        timer = min(self.waiting, key=lambda each: each.due)
        self.timers.remove(timer)
        self.time = max(self.time, timer.due) + late_s
        timer.callback()

    def run_until(self, seconds):
        """Let time go on until so many seconds after the beginning."""
        while any(each.due <= 100 + seconds for each in self.waiting):
            self.ring_next()
        self.time = 100 + seconds


def served(runtime, **options):
    """The server of a channel with these options."""
    return ChannelServer(runtime, ChannelSpec("items", **options), FEATURES)
