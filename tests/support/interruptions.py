"""Real signals at random moments of the main thread's calls."""

from __future__ import annotations

import _thread
import collections
import functools
import itertools
import os
import random
import signal
import sys
import threading

from effort import tries

# `make interrupt N=5000` sets more.
USUAL_ROUNDS = 100
NUM_ROUNDS = int(os.environ.get("INTERRUPTIONS", tries(USUAL_ROUNDS)))
SEED = int(os.environ.get("INTERRUPTION_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
# A call has up to 270 steps, that of a publication 400; every other one is tried.
NUM_STEPS = 3 * NUM_ROUNDS // 2
# How long an interrupted process may take for all its calls.
LIMIT_S = 90 + NUM_ROUNDS / 20
# From the first bytecodes of a call to long after its end; most calls take 50 to 500 us.
SHORTEST_S, LONGEST_S = 1e-5, 5e-3


class Alarm(Exception):
    """What a handler raises that is no KeyboardInterrupt."""


class Alarms:
    """Interrupts calls of the main thread, each at most once.

    Args:
        seed: of the moments.
        on_signal: what the handler does, given the signal's number; by default it raises KeyboardInterrupt and
            Alarm, in turn.
        longest_s: the latest moment, in seconds.

    Attributes:
        num_signals: how many came while a call was under way.
    """

    def __init__(self, seed, on_signal=None, longest_s=LONGEST_S):
        self.num_signals = 0
        self._random = random.Random(seed)
        self._longest_s = longest_s
        self._on_signal = on_signal or _raise_in_turn
        signal.signal(signal.SIGALRM, self._handle)

    def attempt(self, call):
        """Make a call that a signal may interrupt; whether it came to its end."""
        try:
            signal.setitimer(signal.ITIMER_REAL, _moment(self._random, self._longest_s))
            try:
                call()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except (KeyboardInterrupt, Alarm):
            return False
        except Exception as error:  # noqa: BLE001 - looked at
            _check_is_ours(error)
            return False
        return True

    def _handle(self, *_):
        self.num_signals += 1
        self._on_signal(self.num_signals)


class Steps:
    """Interrupts each call two steps later than the one before: wherever the interpreter calls, or returns, something.

    The steps between are tried after those, or before, as the seed says. What a call does where it must not be
    interrupted has mostly several steps, at least one call and its return: either half of them finds it. What it does
    between two of its steps a signal cannot interrupt, but for waiting, which is what `Alarms` is for. Otherwise the
    same.
    """

    def __init__(self, seed, on_signal=None):
        self.num_signals = 0
        self._on_signal = on_signal or _raise_in_turn
        self._fired = False
        self._signals = None
        self._next_steps = collections.defaultdict(lambda: seed % 2)
        signal.signal(signal.SIGUSR1, self._handle)

    def attempt(self, call):
        """Make a call that a signal may interrupt; whether it came to its end."""
        place = getattr(call, "__code__", call)
        self._fired = False
        try:
            # Kept: a handler that runs within it, in a finalizer, would else free what is being called.
            self._signals = _signal_at(self._next_steps[place])
            sys.setprofile(self._signals)
            try:
                call()
            finally:
                sys.setprofile(None)
        except (KeyboardInterrupt, Alarm):
            return False
        except Exception as error:  # noqa: BLE001 - looked at
            _check_is_ours(error)
            return False
        finally:
            step = self._next_steps[place]
            self._next_steps[place] = step + 2 if self._fired else 1 - step % 2
        return True

    def _handle(self, *_):
        sys.setprofile(None)
        self._fired = True
        self.num_signals += 1
        self._on_signal(self.num_signals)


def _signal_at(step):
    """A function for `sys.setprofile` that signals at its `step`-th call.

    None of it is Python code, in which the signal would be handled, and `interrupt_main`, unlike `raise_signal`, leaves
    that to the interpreter: it is done at the first moment after this at which a signal would be.
    """
    fire = map(bool, map(_thread.interrupt_main, [signal.SIGUSR1]))
    answers = itertools.chain(itertools.repeat(False, 3 * step), fire, itertools.repeat(False))
    # It is called with three arguments; `min` asks for the key of each.
    return functools.partial(min, key=functools.partial(next, answers))


def _raise_in_turn(number):
    if number % 2:
        raise KeyboardInterrupt
    raise Alarm


def _check_is_ours(error):
    """Raise an error that is not what a handler raised; whatever decodes or encodes may call that its own."""
    if "UnraisableHookArgs" in str(error):
        return  # CPython's own: a weak reference's callback was interrupted while a profile function is set
    if not isinstance(error.__cause__ or error.__context__, Alarm):
        raise error


class Kills:
    """Another thread's signals to the main thread, where the timer is somebody else's; a context manager.

    Attributes:
        num_signals: how many interrupted a call.
    """

    def __init__(self, seed):
        self.num_signals = 0
        self._random = random.Random(seed)
        self._armed = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._kill_on)

    def __enter__(self):
        self._before = signal.signal(signal.SIGUSR1, self._handle)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()
        signal.signal(signal.SIGUSR1, self._before)

    def attempt(self, call):
        """Make a call that a signal may interrupt; whether it came to its end."""
        try:
            self._armed = True
            try:
                call()
            finally:
                self._armed = False
        except Alarm:
            return False
        return True

    def _kill_on(self):
        main = threading.main_thread().ident
        while not self._done.wait(_moment(self._random, LONGEST_S)):
            signal.pthread_kill(main, signal.SIGUSR1)

    def _handle(self, *_):
        if self._armed:
            self._armed = False
            self.num_signals += 1
            raise Alarm


def _moment(source, longest_s):
    return SHORTEST_S * (longest_s / SHORTEST_S) ** source.random()
