"""Real signals at random moments of whatever the main thread does."""

import contextlib
import random
import signal
import sys
import threading

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


class Bell:
    """A signal that is sent to the main thread, wherever that sleeps, until what it is to do there has begun."""

    def __init__(self, number, act):
        self._number = number
        self._act = act
        self._is_rung = False
        self._is_heard = threading.Event()

    def ring(self):
        """Have the main thread act, once; not to be called there."""
        self._is_heard.clear()
        self._is_rung = True
        while self._is_rung:
            signal.pthread_kill(threading.main_thread().ident, self._number)
            self._is_heard.wait(AGAIN_AFTER_S)

    def _on_signal(self, _number, _frame):
        if self._is_rung:
            self._is_rung = False
            self._is_heard.set()
            self._act()

    def __enter__(self):
        self._before = signal.signal(self._number, self._on_signal)
        return self

    def __exit__(self, *_):
        signal.signal(self._number, self._before)


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


def interrupted_at(number, work, files):
    """Whether a function was interrupted, at that instruction of its own or of what it calls in these files."""
    left = number

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code is not work.__code__ and frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                raise Interrupted
        return trace

    try:
        with traced_by(trace):
            work()
    except Interrupted:
        return True
    return False


@contextlib.contextmanager
def traced_by(trace):
    """Trace what the block calls; a frame that sets `f_trace_opcodes` is traced by instructions."""
    before = sys.gettrace()
    # Python 3.12 tells no trace of instructions before some frame has asked for them.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
