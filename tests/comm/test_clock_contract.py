"""What a clock keeps, whether it is the I/O thread's, the messenger's, or that of a simulated process."""

import threading
from functools import partial
from itertools import pairwise

import pytest

from rlinf_scheduler.comm import ClusterSecret, Messenger
from rlinf_scheduler.comm.loop import Clock, IoLoop
from simulator.world import Process, World

DEADLINE_S = 60.0
LATER_S = 0.02


class Real:
    """A clock of this process, of a loop whose time stands still while something is asked of it."""

    def __init__(self, clock, loop):
        self.clock: Clock = clock
        self._loop = loop

    def play(self, begin):
        """Call `begin` on the thread with what says that it is over, and wait for that."""
        over = threading.Event()

        def act():
            running, moment = self._loop.now, self._loop.now()
            self._loop.now = lambda: moment
            begin(over.set)
            self._loop.now = running

        self._loop.submit(act)
        assert over.wait(DEADLINE_S)


class Simulated:
    """The clock of a simulated process."""

    def __init__(self):
        self._world = World(0)
        self.clock: Clock = Process(self._world, "one")

    def play(self, begin):
        """Call `begin` in the world with what says that it is over, and let everything happen."""
        self._world.schedule(self._world.now_us, None, begin, (lambda: None,))
        self._world.run()


@pytest.fixture(params=["loop", "messenger", "simulated"])
def stage(request):
    if request.param == "simulated":
        yield Simulated()
    elif request.param == "loop":
        loop = IoLoop("clock")
        loop.start()
        yield Real(loop, loop)
        loop.stop()
        loop.join(DEADLINE_S)
    else:
        messenger = Messenger(ClusterSecret.generate())
        yield Real(messenger, messenger._loop)
        messenger.close()


def test_what_is_due_first_comes_first_and_what_is_due_together_in_the_order_in_which_it_was_asked_for(stage):
    came = []

    def begin(done):
        for name, delay_s in (("late", LATER_S), ("now", 0.0), ("early", LATER_S / 2), ("now, too", 0.0)):
            stage.clock.call_later(delay_s, partial(came.append, name))
        stage.clock.call_later(LATER_S, done)

    stage.play(begin)
    assert came == ["now", "now, too", "early", "late"]


def test_nothing_comes_before_its_time_nor_during_the_call_that_asks_for_it(stage):
    asked, came = [], []

    def begin(done):
        asked.append(stage.clock.now())
        stage.clock.call_later(LATER_S, lambda: came.append(stage.clock.now()))
        stage.clock.call_later(0.0, lambda: came.append(stage.clock.now()))
        assert came == []
        stage.clock.call_later(LATER_S, done)

    stage.play(begin)
    soon, later = came
    assert soon >= asked[0]
    assert later >= asked[0] + LATER_S - 1e-9


def test_what_is_cancelled_does_not_come_and_may_be_cancelled_again(stage):
    came = []

    def begin(done):
        timer = stage.clock.call_later(LATER_S, partial(came.append, "cancelled"))
        stage.clock.call_later(0.0, timer.cancel)
        stage.clock.call_later(2 * LATER_S, timer.cancel)
        over = stage.clock.call_later(0.0, partial(came.append, "came"))
        stage.clock.call_later(LATER_S, over.cancel)
        stage.clock.call_later(2 * LATER_S, done)

    stage.play(begin)
    assert came == ["came"]


def test_a_callback_may_ask_for_the_next(stage):
    came = []

    def tick(done):
        came.append(stage.clock.now())
        stage.clock.call_later(LATER_S, partial(tick, done) if len(came) < 3 else done)

    stage.play(tick)
    assert [later >= before + LATER_S - 1e-9 for before, later in pairwise(came)] == [True, True]
