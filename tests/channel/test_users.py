"""Who uses which queues of a channel, as told to whoever looks."""

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.clients import MAX_USES, KnownClient, Users
from rlinf_scheduler.channel.features.explain import MAX_LEFT, MAX_SHOWN, ExplainFeature
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.channel.spec import ChannelSpec
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.messages import Get, Put
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.surveying import NUM_IN_USE

NAMES = {"p": "rollout:0", "g": "actor:0"}
NOW = 10_000.0


def put(queue):
    return wire.Put(1, queue, 0, True, 0)


def get(queue):
    return wire.Get(1, queue, None, True)


class AtNow:
    """A runtime whose clock stands still, for what asks it for the time and no more."""

    name = "driver"

    def now(self):
        return NOW

    def call_later(self, _delay_s, _step):
        raise NotImplementedError

    def submit(self, _step):
        raise NotImplementedError

    def on_peer_lost(self, _then):
        pass

    def serve(self, *_service):
        pass


def activity(state, users):
    server = ChannelServer(AtNow(), ChannelSpec("c"), {})
    server.state, server.users = state, users
    server.clients |= {client: KnownClient(client, None, name) for client, name in NAMES.items()}
    return ExplainFeature(server).activity()


class Remote:
    """Items that other nodes hold, of which nobody is to look at each."""

    def describe(self):
        raise AssertionError


def test_who_looks_every_second_does_not_look_at_each_item_of_other_nodes():
    server = ChannelServer(AtNow(), ChannelSpec("c"), {})
    server.remote = Remote()
    assert ExplainFeature(server).stats().elsewhere == ExplainFeature(server).activity().elsewhere == ()


def by_name(channel):
    return {repr(each.depth.name): each for each in channel.shown}


def test_of_thousands_of_queues_those_with_waiters_are_told_and_some_others():
    users, state = Users(), ChannelState()
    names = [f"q{number}" for number in range(2 * MAX_SHOWN)]
    for at, name in enumerate(names):
        users.note("p", [put(name)], now=float(at))
        users.note("g", [get(name)], now=float(at))
    waited, rest = names[:MAX_SHOWN], names[MAX_SHOWN:]
    state.set_clock(NOW - 5.0)
    for ticket, name in enumerate(waited):
        state.apply(Get(ticket, name), "g")
    for ticket, name in enumerate(["misspelt", *rest]):
        state.apply(Put(ticket, name), "p", Item("x"))
    found = by_name(activity(state, users))
    newest = [repr(name) for name in names[-MAX_SHOWN + 1 :]]
    assert set(found) == {*map(repr, waited), "'misspelt'", *newest}
    assert [user.process for user in found["'q0'"].putters] == ["rollout:0"]
    assert [(each.who, each.operation, each.since_s) for each in found["'q0'"].waiting] == [
        ("actor:0", "get", 5.0)
    ]
    assert found["'misspelt'"].depth.num_items == 1
    assert not found["'misspelt'"].getters


def test_many_queues_whose_items_nobody_gets_leave_room_for_those_used_last():
    users, state = Users(), ChannelState()
    for number in range(2 * MAX_SHOWN):
        state.apply(Put(number, f"left{number}"), "p", Item("x"))
    users.note("p", [put("newest")], now=NOW)
    users.note("g", [get("newest")], now=NOW)
    found = by_name(activity(state, users))
    assert "'newest'" in found
    assert sum(name.startswith("'left") for name in found) == MAX_LEFT


def test_what_is_not_told_of_many_queues_with_waiters_is_counted():
    state = ChannelState()
    for number in range(2 * NUM_IN_USE):
        state.apply(Get(number, f"q{number}"), "g")
    note = activity(state, Users())
    assert (len(note.shown), note.num_untold) == (NUM_IN_USE, NUM_IN_USE)
    assert note.shown[0].depth.name == "q0"  # it waits longest


def test_who_uses_a_queue_again_and_again_is_not_forgotten_for_queues_that_are_used_once():
    users = Users()
    users.note("p", [put("always")], now=0.0)
    for number in range(MAX_USES):
        users.note("p", [put(f"q{number}")], now=1.0)
        users.note("p", [put("always")], now=2.0)
    assert users.by_queue(NAMES, 2.0)["always"][0][0].num_operations == MAX_USES + 1
