import threading
import time

import pytest

from rlinf_scheduler.comm import DirectoryClient, DirectoryServer, Endpoint, Entry
from rlinf_scheduler.comm.directory import AWAITED, PARENT, RETURNS, ListNames, Register
from rlinf_scheduler.comm.names import MAX_AGE_S, MAX_NAMES, GoneNames
from rlinf_scheduler.errors import CommError, NameTaken, PeerDied, PeerNotFound
from waits import wait_until

DEADLINE_S = 60.0


def test_what_is_registered_is_found_with_its_info(names, pair):
    _, there = names
    there.register("rollout:3", pair[1].endpoint, {"node": 2})
    entry = names[0].lookup("rollout:3", DEADLINE_S)
    assert entry.endpoint == pair[1].endpoint
    assert entry.info == {"node": 2}


def test_a_look_up_waits_until_the_name_is_there(names, pair):
    here, there = names
    waiting = [here.lookup_async("rollout:3", DEADLINE_S) for _ in range(3)]
    assert not any(lookup.done() for lookup in waiting)
    there.register("rollout:3", pair[1].endpoint)
    assert {lookup.result(DEADLINE_S).endpoint for lookup in waiting} == {pair[1].endpoint}


def test_a_look_up_waits_for_a_name_that_is_claimed_with_another(names, pair):
    here, there = names
    waiting = here.lookup_async("group/rollouts", DEADLINE_S)
    there.register_async(Entry("rollouts:0", pair[1].endpoint), ["group/rollouts"]).result(DEADLINE_S)
    assert waiting.result(DEADLINE_S).name == "group/rollouts"


def test_a_rank_that_has_left_its_group_is_not_waited_for_and_one_that_comes_is(names, pair):
    here, there = names
    there.register("group/rollout", pair[1].endpoint, {"world_size": 3})
    early = here.lookup_async("rollout:3", DEADLINE_S)
    with pytest.raises(PeerNotFound, match=r"has ranks 0 to 2$"):
        early.result(DEADLINE_S)
    here.expect("rollout:3")
    coming, leaving = (here.lookup_async(f"rollout:{rank}", DEADLINE_S) for rank in (3, 1))
    resized = {"world_size": 3, "ranks": [0, 2, 4], "epoch": 2}
    there.register("group/rollout", pair[1].endpoint, resized, again=True)
    with pytest.raises(PeerNotFound, match=r"has ranks 0,2,4; rank 1 has left$"):
        leaving.result(DEADLINE_S)
    there.register("rollout:3", pair[1].endpoint)
    assert coming.result(DEADLINE_S).name == "rollout:3"
    with pytest.raises(PeerNotFound, match=r"has ranks 0,2,4$"):
        here.lookup("rollout:5", DEADLINE_S)
    assert here.group_ranks() == {"rollout": [0, 2, 4]}
    assert here.group_sizes() == {"rollout": 3}


def test_a_look_up_past_its_deadline_names_the_nearest(names, pair):
    here, there = names
    for name in ("actor:0", "rollout:0", "rollout:1"):
        there.register(name, pair[1].endpoint)
    with pytest.raises(
        PeerNotFound, match=r"nobody named 'rolout:0' after .* there are: rollout:0"
    ) as caught:
        here.lookup("rolout:0", 0.05)
    assert caught.value.known[-1] == "actor:0"


def test_a_rank_that_its_group_does_not_have_is_not_waited_for(names, pair):
    here, there = names
    early = here.lookup_async("rollout:9", DEADLINE_S)
    there.register("group/rollout", pair[1].endpoint, {"world_size": 2})
    there.register("group/critic", pair[1].endpoint, {"world_size": 1})
    started = time.monotonic()
    for look_up in (early, *(here.lookup_async(f"rollout:{rank}", DEADLINE_S) for rank in (2, -1, "x"))):
        with pytest.raises(
            PeerNotFound, match=r"^there is no 'rollout:\S+': group 'rollout' has ranks 0 to 1$"
        ):
            look_up.result(DEADLINE_S)
    with pytest.raises(PeerNotFound, match=r"^there is no 'critic:1': group 'critic' has rank 0 only$"):
        here.lookup("critic:1", DEADLINE_S)
    assert time.monotonic() - started < DEADLINE_S / 2
    possible = [here.lookup_async(name, DEADLINE_S) for name in ("rollout:1", "critic:0", "reward:9")]
    assert not any(look_up.done() for look_up in possible)
    for look_up in possible:
        look_up.cancel()


def test_names_that_are_there_are_listed_as_people_count(names, pair):
    here, there = names
    for rank in (10, 9, 11):
        there.register(f"rollout:{rank}", pair[1].endpoint)
    with pytest.raises(PeerNotFound) as caught:
        here.lookup("rollout:1", 0)
    assert caught.value.known == ("rollout:9", "rollout:10", "rollout:11")


def test_a_look_up_that_may_not_wait_fails_at_once(names):
    started = time.monotonic()
    with pytest.raises(PeerNotFound):
        names[1].lookup("rollout:0", 0)
    assert time.monotonic() - started < DEADLINE_S / 2


def test_entries_are_listed_by_prefix_and_sorted(names, pair):
    here, there = names
    for name in ("rollout:1", "actor:0", "rollout:0"):
        there.register(name, pair[1].endpoint)
    assert [entry.name for entry in here.list("rollout:")] == ["rollout:0", "rollout:1"]
    assert len(here.list()) == 3


def test_names_that_return_are_listed_on_request_while_nobody_has_them(names, pair):
    here, there = names
    endpoint = pair[1].endpoint
    there.register("goes:0", endpoint)
    there.register("returns:0", endpoint, {RETURNS: True})
    pair[1].close()
    deadline = time.monotonic() + DEADLINE_S
    while here.list():
        assert time.monotonic() < deadline
    assert [(entry.name, AWAITED in entry.info) for entry in here.list(awaited=True)] == [("returns:0", True)]
    here.register("returns:0", pair[0].endpoint, {RETURNS: True})
    assert [(entry.name, AWAITED in entry.info) for entry in here.list(awaited=True)] == [
        ("returns:0", False)
    ]


def test_a_name_has_one_living_owner(names, pair):
    here, there = names
    there.register("actor:0", pair[1].endpoint)
    with pytest.raises(NameTaken):
        there.register("actor:0", pair[1].endpoint, {"again": True})
    with pytest.raises(NameTaken, match="the name 'actor:0' is taken, by process 'server:0'"):
        here.register("actor:0", pair[0].endpoint)


def test_a_name_that_left_is_gone_until_it_comes_back(names, pair):
    here, there = names
    there.register("actor:0", pair[1].endpoint)
    there.unregister("actor:0")
    there.unregister("never was there")
    with pytest.raises(PeerDied, match="'actor:0' is gone: it left"):
        here.lookup("actor:0", DEADLINE_S)
    here.register("actor:0", pair[0].endpoint)
    assert there.lookup("actor:0", DEADLINE_S).endpoint == pair[0].endpoint


def test_look_ups_of_an_expected_name_wait_although_its_process_is_gone(names, pair):
    here, there = names
    there.register("actor:0", pair[1].endpoint)
    there.unregister("actor:0")
    here.expect("actor:0")
    waiting = here.lookup_async("actor:0", DEADLINE_S)
    assert not waiting.done()
    here.register("actor:0", pair[0].endpoint)
    assert waiting.result(DEADLINE_S).endpoint == pair[0].endpoint


def test_entries_of_a_closed_process_vanish(names, pair):
    here, there = names
    gone = threading.Event()
    pair[0].on_peer_lost(lambda _process_id: gone.set())
    there.register("actor:0", pair[1].endpoint)
    pair[1].close()
    assert gone.wait(DEADLINE_S)
    assert here.list() == []
    with pytest.raises(PeerDied, match="actor:0"):
        here.lookup("actor:0", DEADLINE_S)


def test_look_ups_of_a_name_that_returns_wait_for_another_process_until_it_is_given_up(names, pair):
    here, there = names
    gone = threading.Event()
    pair[0].on_peer_lost(lambda _process_id: gone.set())
    there.register("actor:0", pair[1].endpoint, {RETURNS: True})
    pair[1].close()
    assert gone.wait(DEADLINE_S)
    waiting = here.lookup_async("actor:0", DEADLINE_S)
    assert here.list() == []
    assert not waiting.done()
    here.give_up_async("actor:0", "it died too often").result(DEADLINE_S)
    with pytest.raises(PeerDied, match="it died too often"):
        waiting.result(DEADLINE_S)
    with pytest.raises(PeerDied, match="it died too often"):
        here.lookup("actor:0", DEADLINE_S)
    here.register("actor:0", pair[0].endpoint)
    assert here.lookup("actor:0", DEADLINE_S).endpoint == pair[0].endpoint


def test_a_cancelled_look_up_is_forgotten_by_the_server(new_messenger):
    messenger = new_messenger("driver")
    server = DirectoryServer(messenger)
    client = DirectoryClient(messenger, messenger.endpoint)
    lookup = client.lookup_async("actor:0", DEADLINE_S)
    client.list()
    assert server._lookups
    assert lookup.cancel()
    client.list()
    assert not server._lookups


def test_a_dead_directory_is_an_error_and_no_hang(names, pair):
    _, there = names
    there.list()
    pair[0].close()
    with pytest.raises(CommError):
        there.lookup("actor:0", DEADLINE_S)


def test_a_relaunch_is_not_taken_for_the_dead_before_it(names, pair, new_messenger):
    here, there = names
    gone = threading.Event()
    pair[0].on_peer_lost(lambda _process_id: gone.set())
    there.register("actor:0", pair[1].endpoint)
    here.expect(["actor:0", "actor:1"])
    pair[1].close()  # noticed after the launch said what it expects
    assert gone.wait(DEADLINE_S)
    waiting = here.lookup_async("actor:0", DEADLINE_S)
    here.register("actor:0", pair[0].endpoint)
    assert waiting.result(DEADLINE_S).endpoint == pair[0].endpoint


def test_who_leaves_late_does_not_take_out_the_next_owner_of_its_name(names, pair):
    here, there = names
    here.register("actor:0", pair[0].endpoint)
    there.unregister("actor:0")
    assert there.lookup("actor:0", DEADLINE_S).endpoint == pair[0].endpoint


def test_notes_of_the_gone_are_bounded_in_number_and_age():
    clock = [0.0]
    gone = GoneNames(lambda: clock[0])
    for number in range(MAX_NAMES + 10):
        gone.note(f"reply:{number}", "it left")
    assert len(gone) == MAX_NAMES
    assert gone.reason("reply:0") is None
    assert gone.reason(f"reply:{MAX_NAMES}") == "it left"
    clock[0] = MAX_AGE_S + 1
    assert gone.reason(f"reply:{MAX_NAMES}") is None
    gone.note("actor:0", "it left")
    assert len(gone) == 1


def lose(pair, names, name, returns):
    """Register a process that says that it returns, and let it end."""
    here, there = names
    there.register(name, pair[1].endpoint, {RETURNS: returns})
    pair[1].close()
    wait_until(lambda: pair[1].endpoint.process_id in pair[0].peers.lost)
    return here


def test_who_does_not_wait_for_a_name_that_returns_is_told_so_and_who_does_waits(names, pair):
    here = lose(pair, names, "rollout:0", True)
    with pytest.raises(PeerDied, match="and is not waited for without wait_for_return=True"):
        here.lookup_async("rollout:0", DEADLINE_S, returns=False).result(DEADLINE_S)
    waiting = here.lookup_async("rollout:0", DEADLINE_S)
    here.register("rollout:0", pair[0].endpoint)
    assert waiting.result(DEADLINE_S).endpoint == pair[0].endpoint


def test_a_name_that_was_given_up_while_its_process_lived_is_not_waited_for_when_that_ends(names, pair):
    here, there = names
    there.register("rollout:0", pair[1].endpoint, {RETURNS: True})
    here.give_up_async("rollout:0", "its group was terminated").result(DEADLINE_S)
    assert here.lookup("rollout:0", DEADLINE_S).endpoint == pair[1].endpoint
    pair[1].close()
    wait_until(lambda: pair[1].endpoint.process_id in pair[0].peers.lost)
    with pytest.raises(PeerDied, match="its group was terminated"):
        here.lookup("rollout:0", DEADLINE_S)


def test_nobody_is_waited_for_whom_a_process_was_to_start_that_is_gone_itself(names, pair):
    here = lose(pair, names, "rollout:0", pair[1].endpoint.process_id)
    with pytest.raises(PeerDied):
        here.lookup("rollout:0", DEADLINE_S)


def test_what_is_asked_of_a_directory_takes_as_long_however_many_names_it_has(names, pair, io_steps):
    here, there = names
    every = [f"rollout:{rank}" for rank in range(8000)]
    there.register_async(Entry("first", pair[1].endpoint), every).result(DEADLINE_S)
    io_steps.forget()
    for name in ("rolout:17", "critic:0", "first/none"):
        with pytest.raises(PeerNotFound):
            here.lookup(name, 0)
    assert [entry.name for entry in here.list()] == sorted(["first", *every])
    there.register("group/rollout", pair[1].endpoint, {"world_size": 8001})
    with pytest.raises(PeerNotFound, match=r"has ranks 0 to 8000"):
        here.lookup("rollout:8001", 0)
    assert here.list("group/")[0].name == "group/rollout"
    assert io_steps.longest_s < 0.02, io_steps.culprit


def test_all_ranks_of_a_large_group_that_is_launched_again_are_waited_for():
    names = [f"rollout:{rank}" for rank in range(10_000)]
    gone = GoneNames(lambda: 0.0)
    for name in names:
        gone.note(name, "its process is gone")
    assert [name for name in names if gone.reason(name) is None] == []
    gone.expect(names)
    for name in names:
        gone.note(name, "its process is gone")  # the old ones, noticed late
    assert [name for name in names if gone.reason(name) is not None] == []


class Alone:
    """A messenger of a process that nobody reaches, for a directory's names."""

    def __init__(self):
        self.peers = self
        self.now = time.monotonic

    def serve(self, _service, handler, _type):
        self.ask = handler

    def on_peer_lost(self, callback):
        self.lose = callback

    def connect(self, endpoint):
        pass

    def why_lost(self, process_id):
        return "its process is gone"


class Asked:
    """A request, and its answer."""

    def __init__(self, head):
        self.head = head

    def reply(self, head):
        self.answer = head


def seconds_to_lose(num_ranks):
    """What it takes of a core to lose so many ranks, one after the other."""
    messenger = Alone()
    DirectoryServer(messenger)
    for rank in range(num_ranks):
        endpoint = Endpoint(f"{rank:032x}", "here", "/nowhere", "")
        messenger.ask(Asked(Register(Entry(f"rollout:{rank}", endpoint), False)))
    began = time.thread_time()
    for rank in range(num_ranks):
        messenger.lose(f"{rank:032x}")
    took_s = time.thread_time() - began
    asked = Asked(ListNames(""))
    messenger.ask(asked)
    assert asked.answer == []
    return took_s


def test_the_loss_of_many_ranks_at_once_costs_so_much_for_each_however_many_there_are():
    # Eight times as many: 64 times as much if each looked through all.
    assert min(seconds_to_lose(8000) for _ in range(3)) < 24 * max(seconds_to_lose(1000) for _ in range(3))


def test_a_rank_is_told_from_what_looks_like_one(names, pair):
    here, there = names
    there.register("group/rollout", pair[1].endpoint, {"world_size": 12})
    for rank in ("12", "01", "+1", "٣", "1.0", " 1", "²"):
        with pytest.raises(PeerNotFound, match="group 'rollout' has ranks 0 to 11"):
            here.lookup(f"rollout:{rank}", 0.0)


@pytest.fixture
def home(new_messenger):
    """A directory's process."""
    messenger = new_messenger("home")
    DirectoryServer(messenger)
    return messenger


@pytest.fixture
def here(new_messenger, home):
    """Asks it from another process."""
    return DirectoryClient(new_messenger("here"), home.endpoint)


def why_gone(look_up):
    with pytest.raises(PeerDied) as caught:
        look_up.result(DEADLINE_S)
    return caught.value.reason


def test_a_worker_below_one_that_is_gone_is_not_waited_for(home, here, new_messenger):
    third = new_messenger("rollout:3")
    client = DirectoryClient(third, home.endpoint)
    client.register("rollout:3", third.endpoint)
    waiting = [here.lookup_async(f"rollout:3/{way}", DEADLINE_S) for way in ("0", "0/1")]
    of_another = here.lookup_async("rollout:4/0", DEADLINE_S)
    below = [here.lookup_async("rollout:3/inner:0", DEADLINE_S)]
    third.close()
    for look_up in (*waiting, here.lookup_async("rollout:3/7", DEADLINE_S)):
        assert why_gone(look_up).startswith("'rollout:3', below which it was, is gone")
    assert not any(each.done() for each in (of_another, *below))


def test_what_was_below_a_rank_is_waited_for_again_when_another_is_expected(home, here, new_messenger):
    for name in ("rollout:3/0", "rollout:3"):
        process = new_messenger(name)
        DirectoryClient(process, home.endpoint).register(name, process.endpoint)
        process.close()
        why_gone(here.lookup_async(name, DEADLINE_S))
    here.expect("rollout:3")
    waiting = here.lookup_async("rollout:3/0", DEADLINE_S)
    assert not waiting.done()
    again = new_messenger("rollout:3/0")
    DirectoryClient(again, home.endpoint).register("rollout:3/0", again.endpoint)
    assert waiting.result(DEADLINE_S).endpoint == again.endpoint


def test_a_worker_whose_parent_is_gone_is_told_of_and_takes_no_name(new_messenger):
    home, parent, child, late = (
        new_messenger(name) for name in ("home", "rollout:3", "rollout:3/0", "rollout:3/1")
    )
    orphans = []
    DirectoryServer(home, lambda entry, why: orphans.append((entry.name, why)))
    about = {PARENT: parent.endpoint.process_id}
    DirectoryClient(parent, home.endpoint).register("rollout:3", parent.endpoint)
    DirectoryClient(child, home.endpoint).register("rollout:3/0", child.endpoint, about)
    parent.close()
    wait_until(lambda: orphans)
    ((name, why),) = orphans
    assert (name, why.partition(":3', ")[2].partition(":")[0]) == (
        "rollout:3/0",
        "below which it was, is gone",
    )
    with pytest.raises(PeerDied, match="'rollout:3', below which it was, is gone"):
        DirectoryClient(late, home.endpoint).register("rollout:3/1", late.endpoint, about)


def test_who_gives_a_rank_up_gives_up_what_was_below_it(home, here, new_messenger):
    keeper = {RETURNS: home.endpoint.process_id}
    for name in ("rollout:3", "rollout:3/0"):
        process = new_messenger(name)
        DirectoryClient(process, home.endpoint).register(name, process.endpoint, keeper)
        process.close()
    waiting = here.lookup_async("rollout:3/0", DEADLINE_S)
    wait_until(
        lambda: {entry.name for entry in here.list("rollout:3", awaited=True)} >= {"rollout:3", "rollout:3/0"}
    )
    assert not waiting.done()
    here.give_up_async("rollout:3", "it died too often").result(DEADLINE_S)
    assert why_gone(waiting) == "'rollout:3', below which it was, is gone: it died too often"


def test_a_worker_below_a_rank_that_its_group_does_not_have_is_not_waited_for(names, pair):
    here, there = names
    there.register("group/rollout", pair[1].endpoint, {"world_size": 2})
    with pytest.raises(PeerNotFound, match=r"there is no 'rollout:2/0': group 'rollout' has ranks 0 to 1"):
        here.lookup("rollout:2/0", DEADLINE_S)


def test_a_worker_below_a_rank_succeeds_one_that_nobody_has_noticed_to_be_gone(new_messenger):
    home, before, after = (new_messenger(name) for name in ("home", "rollout:3/0", "rollout:3/0"))
    dead = []
    DirectoryServer(home, lambda entry, why: dead.append(entry.endpoint))
    clients = [DirectoryClient(messenger, home.endpoint) for messenger in (before, after)]
    clients[0].register("rollout:3/0", before.endpoint, {PARENT: "a process"})
    entry = Entry("rollout:3/0", after.endpoint, {PARENT: "a process"})
    with pytest.raises(NameTaken):
        clients[1].register_async(entry).result(DEADLINE_S)
    clients[1].register_async(entry, succeeds=True).result(DEADLINE_S)
    assert dead == [before.endpoint]
    before.close()
    assert clients[1].lookup("rollout:3/0", DEADLINE_S).endpoint == after.endpoint
    # A rank is succeeded by nobody whom its launch has not started.
    clients[1].register("rollout:4", after.endpoint)
    late = new_messenger("rollout:4")
    with pytest.raises(NameTaken):
        DirectoryClient(late, home.endpoint).register_async(
            Entry("rollout:4", late.endpoint), succeeds=True
        ).result(DEADLINE_S)
