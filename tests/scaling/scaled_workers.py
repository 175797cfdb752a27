"""Workers of the tests about policies and loans; a module of their own, for workers import them by name."""

import os
import threading

from rlinf.scheduler import Channel, Worker
from rlinf_scheduler.session import current_session
from rlinf_scheduler.session.membership import Draining


class Maker(Worker):
    """Makes items, each of which takes a while."""

    def make(self, channel, takes_s):
        """Until the rank leaves; how many it has made."""
        items, over, made = Channel.connect(channel), threading.Event(), 0
        current_session().service(Draining).began.add_done_callback(lambda _: over.set())
        while not over.wait(takes_s):
            items.put((self.rank, made), timeout_s=60)
            made += 1
        return made

    def make_one(self, channel):
        """A single item, at once."""
        Channel.connect(channel).put((self.rank, 0), timeout_s=60)

    def devices(self):
        """Those it sees."""
        return os.environ["CUDA_VISIBLE_DEVICES"]


class Taker(Worker):
    """Takes items, each of which takes a while."""

    def take(self, channel, takes_s, most):
        """So many, of which there are fewer if the channel is closed."""
        items, pause, taken = Channel.connect(channel), threading.Event(), []
        while len(taken) < most and items.get(timeout_s=60) is not None:
            taken.append(1)
            pause.wait(takes_s)
        return len(taken)


class Stubborn(Maker):
    """Takes it amiss when others come."""

    def on_resize(self, old, new):
        """Raise if the group has grown."""
        if new.world_size > old.world_size:
            raise ValueError("too many")
