"""Real signals at random moments of whatever the main thread does."""

import random
import signal

import pytest

# A signal between the interpreter's last look for one and the thread's sleep does not wake it; the next one does.
AGAIN_AFTER_S = 0.05


class Interrupted(BaseException):
    """What the signal's handler raises."""


class Alarms:
    """Interrupts calls; the same seed gives the same delays.

    Attributes:
        num_raised: how many interruptions there were.
    """

    def __init__(self, seed, max_delay_s=0.001):
        self._random = random.Random(seed)
        self._max_delay_s = max_delay_s
        self._armed = False
        self.num_raised = 0

    def on_signal(self, _number, _frame):
        if self._armed:
            self._armed = False
            self.num_raised += 1
            raise Interrupted

    def interrupt(self, call):
        """Call it, and interrupt it perhaps; whether it came to its end."""
        try:
            self._armed = True
            first_s = self._random.uniform(1e-6, self._max_delay_s)
            signal.setitimer(signal.ITIMER_REAL, first_s, AGAIN_AFTER_S)
            call()
            self._armed = False
        except Interrupted:
            return False
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        return True


@pytest.fixture
def alarms():
    """Makes `Alarms`, one at a time."""
    before = signal.getsignal(signal.SIGALRM)

    def make(seed, max_delay_s=0.001):
        made = Alarms(seed, max_delay_s)
        signal.signal(signal.SIGALRM, made.on_signal)
        return made

    yield make
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
