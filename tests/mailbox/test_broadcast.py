import asyncio
import threading

import numpy as np
import pytest
import torch

import arena_peers
from rlinf_scheduler.comm import DirectoryClient, DirectoryServer
from rlinf_scheduler.comm.replication import Replicas
from rlinf_scheduler.errors import CodecError, CommError, CommTimeout, PeerDied, PeerNotFound
from rlinf_scheduler.mailbox import Mailbox
from rlinf_scheduler.mailbox.members import Members, parse_members
from rlinf_scheduler.queueing.stats import depths_of
from weights_job import wait_until

DEADLINE_S = 60.0
LIMIT_BYTES = 100_000
FITS = 10_000  # so many numbers leave at once, and go through shared memory
LARGE = 200_000  # goes through shared memory where there is some
MACHINES = {
    "one machine": "aaaaaaa",
    "three machines": "aabbccc",
    "a machine each": "abcdefg",
}
NAMES = ["actor:0", *(f"rollout:{rank}" for rank in range(6))]
GROUPS = [("actor", [0]), ("rollout", range(6))]
SRC = ("actor", 0)


class Party:
    """Named processes of several machines, within this one."""

    def __init__(self, new_messenger, machines=MACHINES["one machine"], names=NAMES, **options):
        self.messengers = {
            name: new_messenger(name, machine, **options)
            for name, machine in zip(names, machines, strict=True)
        }
        first = self.messengers[names[0]]
        DirectoryServer(first)
        self.directories = {
            name: DirectoryClient(messenger, first.endpoint) for name, messenger in self.messengers.items()
        }
        self.boxes = {
            name: Mailbox(messenger, self.directories[name], name, limit_bytes=LIMIT_BYTES)
            for name, messenger in self.messengers.items()
        }

    def register(self, *names):
        for name in names or self.boxes:
            self.directories[name].register(name, self.messengers[name].endpoint)
        return self

    def call(self, name, obj=None, groups=GROUPS, src=SRC, timeout_s=DEADLINE_S):
        return self.boxes[name].broadcast(obj, groups, src, timeout_s=timeout_s)

    def others(self, groups=GROUPS, names=NAMES[1:]):
        return {name: self.call(name, groups=groups) for name in names}

    def stop_reading(self, name):
        """Let a process's I/O thread stand still until the event is set."""
        go_on, stands = threading.Event(), threading.Event()

        def stand():
            stands.set()
            go_on.wait(DEADLINE_S)

        self.messengers[name].submit(stand)
        assert stands.wait(DEADLINE_S)
        return go_on


@pytest.fixture(params=MACHINES)
def party(request, new_messenger):
    """A source and six members, on one machine or on several."""
    return Party(new_messenger, MACHINES[request.param]).register()


@pytest.fixture
def here(new_messenger):
    """A source and six members on one machine."""
    return Party(new_messenger).register()


@pytest.fixture
def apart(new_messenger):
    """A source on one machine and six members on another one."""
    return Party(new_messenger, "abbbbbb").register()


def lose(party, name, seen_by):
    """Close a process and wait until another one has noticed it."""
    lost = threading.Event()
    process_id = party.messengers[name].endpoint.process_id
    party.messengers[seen_by].on_peer_lost(lambda gone: lost.set() if gone == process_id else None)
    party.messengers[name].close()
    assert lost.wait(DEADLINE_S)


def holders(party, names=NAMES):
    """Who of these processes keeps an object in its shared memory, once for each object."""
    return [name for name in names for _ in range(party.messengers[name].payloads.arena.num_held)]


# -- what everybody gets -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 1000, LARGE])
def test_every_member_gets_the_object(party, size):
    receiving = party.others()
    sent = {"weights": torch.arange(size), "step": 7}
    assert party.call("actor:0", sent).wait(DEADLINE_S) is sent
    for handle in receiving.values():
        received = handle.wait(DEADLINE_S)
        assert received["step"] == 7
        assert torch.equal(received["weights"], sent["weights"])


def test_members_may_come_late(party):
    sending = [party.call("actor:0", np.full(LARGE // 10, number)) for number in range(3)]
    for name in reversed(NAMES[1:]):
        assert [int(party.call(name).wait()[-1]) for _ in range(3)] == [0, 1, 2]
    for handle in sending:
        handle.wait(DEADLINE_S)


def test_members_that_register_late_are_waited_for(new_messenger):
    party = Party(new_messenger, MACHINES["three machines"])
    receiving = party.others()
    sending = party.call("actor:0", b"x" * LARGE)
    for name in ["actor:0", *NAMES[:0:-1]]:
        assert not sending.done()
        party.register(name)
    sending.wait(DEADLINE_S)
    assert all(handle.wait(DEADLINE_S) == b"x" * LARGE for handle in receiving.values())


def test_broadcasts_are_received_in_order(party):
    num_turns = 60
    sizes = [(number * 977) % 60_000 + 1 for number in range(num_turns)]
    sending = [
        party.call("actor:0", [number, bytes(size)])
        for number, size in zip(range(num_turns), sizes, strict=True)
    ]
    for name in NAMES[1:]:
        received = [party.call(name).wait() for _ in range(num_turns)]
        assert [number for number, _ in received] == list(range(num_turns))
        assert [len(data) for _, data in received] == sizes
    for handle in sending:
        handle.wait(DEADLINE_S)


def test_threads_that_broadcast_at_once_are_received_in_one_order(party):
    def run(first):
        for number in range(10):
            party.call("actor:0", (first, number, bytes(40_000 * (number % 2)))).wait()

    threads = [threading.Thread(target=run, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    orders = {}
    for turn in range(40):
        for name in NAMES[1:]:
            first, number, _ = party.call(name).wait()
            orders.setdefault(name, []).append((first, number))
        assert len({order[turn] for order in orders.values()}) == 1
    for thread in threads:
        thread.join(DEADLINE_S)
    for first in range(4):
        assert [number for who, number in orders["rollout:0"] if who == first] == list(range(10))


def test_different_members_different_sources_and_sends_do_not_mix(party):
    pairs = [("actor", 0), ("rollout", [0])]
    both = [("rollout", [1, 0]), ("actor", 0)]
    sending = [
        party.boxes["actor:0"].send("sent", "rollout:0", timeout_s=DEADLINE_S),
        party.call("actor:0", "to both", both),
        party.call("rollout:1", "from rollout", both, ("rollout", 1)),
        party.call("actor:0", "to one", pairs),
    ]
    assert party.call("rollout:0", None, pairs).wait() == "to one"
    assert party.call("rollout:0", None, both, ("rollout", 1)).wait() == "from rollout"
    assert party.call("rollout:0", None, both).wait() == "to both"
    assert party.boxes["rollout:0"].recv("actor:0", timeout_s=DEADLINE_S).wait() == "sent"
    assert party.call("rollout:1", None, both).wait() == "to both"
    assert party.call("actor:0", None, both, ("rollout", 1)).wait() == "from rollout"
    for handle in sending:
        handle.wait(DEADLINE_S)


def test_the_order_in_which_groups_are_written_does_not_matter(here):
    receiving = here.call("rollout:1", None, [("rollout", (1, 0)), ("actor", 0)])
    here.call("actor:0", "all the same", [("actor", [0]), ("rollout", 1), ("rollout", 0)])
    assert receiving.wait(DEADLINE_S) == "all the same"


def test_what_members_receive_is_their_own(party):
    receiving = party.others()
    sent = np.zeros(LARGE)
    party.call("actor:0", sent).wait(DEADLINE_S)
    received = [handle.wait(DEADLINE_S) for handle in receiving.values()]
    for number, array in enumerate(received):
        array += number + 1
    assert [array.sum() for array in received] == [(number + 1) * LARGE for number in range(6)]
    assert not sent.any()


def test_an_object_is_sent_as_it_is_during_the_call(party):
    array = np.zeros(LARGE // 10)
    sending = []
    for number in range(5):
        array[:] = number
        sending.append(party.call("actor:0", array))
    array[:] = -1
    for name in NAMES[1:]:
        for number in range(5):
            assert (party.call(name).wait() == number).all()
    for handle in sending:
        handle.wait(DEADLINE_S)


def test_the_only_member_gets_its_own_object(here):
    sent = object()
    assert here.call("actor:0", sent, [("actor", 0)]).wait() is sent


def test_handles_can_be_awaited_and_chained(here):
    async def play():
        receiving = [here.call(name).then(len) for name in NAMES[1:]]
        await here.call("actor:0", "four")
        return await asyncio.gather(*receiving)

    assert asyncio.run(asyncio.wait_for(play(), DEADLINE_S)) == [4] * 6


def test_an_object_that_cannot_be_sent_is_an_error_at_once(here):
    with pytest.raises(CodecError):
        here.call("actor:0", threading.Lock())


# -- bytes ---------------------------------------------------------------------------------------


def test_members_of_one_machine_read_one_block(here):
    receiving = here.others()
    here.call("actor:0", np.ones(LARGE)).wait(DEADLINE_S)
    arena = here.messengers["actor:0"].payloads.arena
    assert arena.generation == 1
    received = [handle.wait(DEADLINE_S) for handle in receiving.values()]
    receiving.clear()
    assert not arena.unused()
    assert sum(array.sum() for array in received) == 6 * LARGE
    received.clear()
    arena_peers.eventually(arena.unused)


def test_on_another_machine_the_bytes_arrive_once_and_are_written_once(apart):
    relays = [messenger for name, messenger in apart.messengers.items() if name != "actor:0"]
    for turn in range(3):
        apart.call("actor:0", np.full(LARGE, turn)).wait(DEADLINE_S)
        for name in NAMES[1:]:
            assert apart.call(name).wait()[-1] == turn
    assert sum(messenger.payloads.arena.generation for messenger in relays) == 3
    for messenger in relays:
        wait_until(lambda: not holders(apart), messenger)


def test_a_finished_broadcast_leaves_nothing_behind(party):
    for turn in range(3):
        party.call("actor:0", np.full(LARGE, turn)).wait(DEADLINE_S)
        for name in NAMES[1:]:
            assert party.call(name).wait()[-1] == turn
    party.others(), party.others()  # given up at once
    for name, box in party.boxes.items():
        wait_until(lambda box=box: not depths_of(box._inbox._state.queues), party.messengers[name])
    wait_until(lambda: not holders(party), party.messengers["rollout:0"])


def test_a_member_that_has_not_called_hands_on_all_the_same(apart):
    apart.call("actor:0", np.ones(LARGE)).wait(DEADLINE_S)
    for name in NAMES[:1:-1]:
        assert apart.call(name).wait().sum() == LARGE


def test_what_a_machine_keeps_is_bounded(apart):
    slow, others, size = "rollout:5", NAMES[1:6], 70_000
    apart.call("actor:0", 0).wait(DEADLINE_S)
    go_on = apart.stop_reading(slow)
    sending = [apart.call("actor:0", bytes(size)) for _ in range(30)]
    for name in others:
        for _ in range(31):
            apart.call(name).wait()
    # A member has the object before those from which it came have let go of it.
    wait_until(lambda: len(holders(apart, others)) == LIMIT_BYTES // size, apart.messengers["actor:0"])
    go_on.set()
    assert apart.call(slow).wait() == 0
    assert [len(apart.call(slow).wait()) for _ in range(30)] == [size] * 30
    for handle in sending:
        handle.wait(DEADLINE_S)


@pytest.mark.parametrize("machines", MACHINES)
@pytest.mark.parametrize("arena_limit_bytes", [0, 4096])
def test_without_shared_memory_everybody_gets_the_bytes(new_messenger, machines, arena_limit_bytes):
    party = Party(new_messenger, MACHINES[machines], arena_limit_bytes=arena_limit_bytes).register()
    receiving = party.others()
    party.call("actor:0", np.ones(LARGE)).wait(DEADLINE_S)
    assert [handle.wait(DEADLINE_S).sum() for handle in receiving.values()] == [LARGE] * 6


def test_a_member_that_does_not_take_holds_back_the_source(party):
    sending = [party.call("actor:0", bytes([number]) * 40_000) for number in range(10)]
    sending[1].wait(DEADLINE_S)
    for name in NAMES[1:-1]:
        assert [party.call(name).wait()[0] for _ in range(10)] == list(range(10))
    assert not any(handle.done() for handle in sending[2:])
    assert [party.call(NAMES[-1]).wait()[0] for _ in range(10)] == list(range(10))
    for handle in sending:
        handle.wait(DEADLINE_S)


# -- who is missing ------------------------------------------------------------------------------


def test_the_one_member_that_never_registers_is_named_at_the_deadline(here):
    groups = [*GROUPS, ("critic", 0)]
    sending = here.call("actor:0", "value", groups, timeout_s=1.0)
    assert [here.call(name, None, groups).wait() for name in NAMES[1:]] == ["value"] * 6
    with pytest.raises(PeerNotFound, match=r"nobody named 'critic:0' after \d+\.\d s"):
        sending.wait(DEADLINE_S)


def test_all_who_are_missing_are_named_with_their_reasons(here):
    here.call("actor:0", bytes(LIMIT_BYTES - 1)).wait(DEADLINE_S)
    assert len(here.call("rollout:0").wait()) == LIMIT_BYTES - 1
    with pytest.raises(CommTimeout) as caught:
        here.call("actor:0", "value", timeout_s=1.0).wait(DEADLINE_S)
    assert caught.value.peer == "rollout:1, rollout:2, rollout:3, rollout:4, rollout:5"
    assert f"'rollout:5' (room in its mailbox, which holds {LIMIT_BYTES - 1} bytes" in str(caught.value)


@pytest.mark.usefixtures("patient_transfers")
def test_those_who_died_are_named_beside_those_who_never_came(here):
    groups = [*GROUPS, ("critic", [0, 1])]
    lose(here, "rollout:2", "actor:0")
    with pytest.raises(CommTimeout) as caught:
        here.call("actor:0", "value", groups, timeout_s=1.0).wait(DEADLINE_S)
    assert caught.value.peer == "critic:0, critic:1, rollout:2"
    assert "'critic:1', which never registered" in str(caught.value)
    assert "'rollout:2', which is gone (it closed its messenger)" in str(caught.value)


@pytest.mark.usefixtures("patient_transfers")
def test_a_source_that_never_registers_is_named_at_the_deadline(new_messenger):
    party = Party(new_messenger).register(*NAMES[1:])
    with pytest.raises(PeerNotFound, match="'actor:0'"):
        party.call("rollout:0", timeout_s=0.1).wait(DEADLINE_S)


def test_a_source_that_never_calls_is_named_at_the_deadline(here):
    with pytest.raises(CommTimeout, match=r"broadcast with 'actor:0' not done .* for its source to call it"):
        here.call("rollout:0", timeout_s=0.1).wait(DEADLINE_S)


def test_a_member_that_gave_up_gets_the_object_when_it_calls_again(here):
    with pytest.raises(CommTimeout):
        here.call("rollout:0", timeout_s=0.1).wait(DEADLINE_S)
    here.call("actor:0", "value").wait(DEADLINE_S)
    assert here.call("rollout:0").wait() == "value"


def test_a_broadcast_that_is_cancelled_before_it_left_is_not_delivered(here):
    groups = [("actor", 0), ("rollout", 0)]
    here.call("actor:0", bytes(LIMIT_BYTES), groups).wait(DEADLINE_S)
    assert here.call("actor:0", "given up", groups).cancel()
    here.call("actor:0", "after", groups)
    here.call("rollout:0", None, groups).wait()
    assert here.call("rollout:0", None, groups).wait() == "after"


# -- deaths within one process -------------------------------------------------------------------


def test_a_dead_member_is_named_when_all_others_have_the_object(party):
    lose(party, "rollout:2", "actor:0")
    receiving = party.others(names=[name for name in NAMES[1:] if name != "rollout:2"])
    with pytest.raises(PeerDied, match="'rollout:2' is gone"):
        party.call("actor:0", b"x" * LARGE).wait(DEADLINE_S)
    assert all(handle.wait(DEADLINE_S) == b"x" * LARGE for handle in receiving.values())


def test_all_dead_members_are_named(here):
    for name in ("rollout:2", "rollout:4"):
        lose(here, name, "actor:0")
    with pytest.raises(PeerDied) as caught:
        here.call("actor:0", "value").wait(DEADLINE_S)
    assert caught.value.peer == "rollout:2, rollout:4"


def test_members_hear_at_once_that_the_source_is_gone(party):
    party.call("actor:0", b"x" * LARGE).wait(DEADLINE_S)
    received = party.others()
    assert all(len(handle.wait(DEADLINE_S)) == LARGE for handle in received.values())
    waiting = party.others()
    # Whoever got the object from a relay watches the source all the same.
    party.messengers["actor:0"].close()
    for handle in waiting.values():
        with pytest.raises(PeerDied, match="actor:0"):
            handle.wait(DEADLINE_S)


def test_what_a_dead_source_had_sent_can_still_be_received(party):
    party.call("actor:0", b"x" * LARGE).wait(DEADLINE_S)
    lose(party, "actor:0", "rollout:5")
    assert party.call("rollout:5").wait() == b"x" * LARGE


def test_the_source_serves_a_machine_whose_replica_is_gone_through_the_next_member(apart):
    # The first that is asked for a copy goes before it gives one.
    asked = threading.Event()
    for name in NAMES[1:]:
        apart.messengers[name].unserve("mailbox.copy")
        apart.messengers[name].serve("mailbox.copy", lambda _request: asked.set())
    sending = apart.call("actor:0", np.ones(FITS))
    assert asked.wait(DEADLINE_S)
    (first,) = holders(apart, NAMES[1:])
    assert apart.call(first).wait().sum() == FITS  # it has arrived there, too
    for name in NAMES[1:]:
        if name != first:
            apart.messengers[name].unserve("mailbox.copy")
            apart.messengers[name].serve("mailbox.copy", apart.boxes[name]._inbox.replicas._on_copy)
    apart.messengers[first].close()
    for name in NAMES[1:]:
        if name != first:
            assert apart.call(name).wait().sum() == FITS
    sending.wait(DEADLINE_S)


def test_a_replica_without_memory_has_the_object_and_the_others_get_it_from_its_source(apart, monkeypatch):
    monkeypatch.setattr(Replicas, "_room_for", lambda *_args: None)
    obj = np.arange(FITS)
    handles = apart.others()
    apart.call("actor:0", obj).wait(DEADLINE_S)
    for handle in handles.values():
        assert np.array_equal(handle.wait(DEADLINE_S), obj)


# -- who takes part ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "groups",
    [
        [("actor", [0]), ("rollout", [0, 1])],
        [("rollout", (1, 0)), ("actor", 0)],
        [["rollout", 1], ["rollout", range(1)], ["actor", np.int64(0)]],
    ],
)
def test_members_are_named_by_group_and_rank(groups):
    assert parse_members(groups, ("actor", 0), "actor:0") == Members("actor:0", ("rollout:0", "rollout:1"))


def test_ranks_are_ordered_as_numbers():
    members = parse_members([("rollout", [10, 9, 0])], ("rollout", 0), "rollout:9")
    assert members.targets == ("rollout:9", "rollout:10")


def test_the_source_is_the_first_member_that_is_named_unless_it_is_given():
    assert parse_members([("rollout", [3, 1]), ("actor", 0)], None, "actor:0").source == "rollout:3"


@pytest.mark.parametrize(
    ("groups", "src", "problem"),
    [
        ([("a", 0), ("a", [1, 0])], ("a", 0), "names 'a:0' twice"),
        ([("a", [0, 1])], ("b", 0), "the source of a broadcast, 'b:0', is none of its members: 'a:0', 'a:1'"),
        ([("b", [0, 1])], ("b", 0), "'a:0' is none of the members of this broadcast: 'b:0', 'b:1'"),
        ([], None, "needs members"),
        ([("a", [])], None, "needs members"),
        ("a", None, "are a list of"),
        (None, None, "are a list of"),
        (["a"], None, r"is \(group name, rank or ranks\), not 'a'"),
        ([("a", 0)], "a:0", r"is \(group name, rank\), not 'a:0'"),
        ([("a", "01")], None, "a whole number from 0, not '01'"),
        ([("a", [-1])], None, "a whole number from 0, not -1"),
        ([("a", True)], None, "a whole number from 0, not True"),
        ([("a", [0.5])], None, "a whole number from 0, not 0.5"),
        ([("a", range(1, 99))], ("a", 0), "'a:16' and 82 more"),
    ],
)
def test_a_mistake_in_the_members_is_said_clearly(groups, src, problem):
    with pytest.raises(CommError, match=problem):
        parse_members(groups, src, "a:0")
