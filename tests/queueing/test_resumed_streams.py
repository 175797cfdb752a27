"""What two processes say to each other where one of them dies and comes back."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.durable.streams import ServerStreams, Stream
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.messages import Get, Linger, Put, Ripen
from rlinf_scheduler.queueing.snapshot import ripening
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.wanted import Limits


def test_a_batch_that_waits_for_more_is_known_to_a_shell_that_takes_the_state_over():
    state = ChannelState()
    state.apply(Get(1, "default", batch_weight=5, limits=Limits(max_wait_s=0.5)), "consumer")
    assert ripening(state.queues) == []
    state.apply(Put(2, "default"), "producer", Item("item", 1))
    again = pickle.loads(pickle.dumps(state))
    assert ripening(again.queues) == [Ripen("consumer", 1, 0.5)]
    (deliver,) = again.apply(Linger(1), "consumer")
    assert [item.payload for item in deliver.items] == ["item"]


def test_who_was_given_up_is_told_and_who_has_not_begun_begins():
    streams = ServerStreams()
    assert streams.resume("a", 0, begun=True) is None
    assert streams.resume("a", 0, begun=False) == (0, [])
    streams.join("a")
    streams.lose("a")
    assert not streams.take("a", 1)
    assert streams.say("a", "too late") is None


class World:
    """A client, a server, the journal between its lives, and what lies on the way; all of it may be lost."""

    def __init__(self):
        self.journal = []
        self.done, self.said, self.told = [], [], []
        self.client = Stream()
        self.begin()

    def begin(self):
        """The server's process begins, and knows what is in the journal; then the two find each other."""
        self.streams = ServerStreams()
        self.streams.join("client")
        self.done = []
        for record in self.journal:
            self.apply(*record)
        heard, again = self.streams.resume("client", self.client.heard, begun=True)
        self.client.confirm(heard)
        self.to_client = list(again)
        self.to_server = [(number, self.client.heard, what) for number, what in self.client.after(heard)]
        self.pending = []

    def say(self):
        what = len(self.said)
        self.said.append(what)
        self.to_server.append((self.client.say(what), self.client.heard, what))

    def arrive(self):
        if self.to_server:
            number, heard, what = self.to_server.pop(0)
            assert self.streams.take("client", number)
            self.pending.append((number, heard, what))

    def write(self):
        """What has come is written, done, and answered."""
        self.journal += self.pending
        for record in self.pending:
            self.apply(*record)
        self.pending = []

    def apply(self, number, heard, what):
        if self.streams.apply("client", number, heard):
            self.done.append(what)
            answer = ("done", what)
            told = self.streams.say("client", answer)
            if hasattr(self, "to_client"):
                self.to_client.append((told, answer))

    def hear(self):
        if self.to_client:
            number, answer = self.to_client.pop(0)
            if self.client.hear(number):
                self.told.append(answer)

    def die_between_writing_and_answering(self):
        self.journal += self.pending
        self.begin()


@given(
    st.lists(
        st.sampled_from(
            ["say", "say", "arrive", "write", "hear", "begin", "die_between_writing_and_answering"]
        )
    )
)
def test_everything_is_done_once_and_answered_once_in_order_over_any_number_of_deaths(steps):
    world = World()
    for step in steps:
        getattr(world, step)()
        assert world.done == world.said[: len(world.done)]
        assert world.told == [("done", what) for what in world.said[: len(world.told)]]
    world.begin()
    while world.to_server or world.pending or world.to_client:
        world.arrive()
        world.write()
        world.hear()
    assert world.done == world.said
    assert world.told == [("done", what) for what in world.said]
