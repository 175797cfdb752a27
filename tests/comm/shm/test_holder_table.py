"""Who holds which block."""

import multiprocessing
import os
import time

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import arena_peers
from effort import tries
from rlinf_scheduler.comm.shm import kernel
from rlinf_scheduler.comm.shm.foreign import claim_slot, clear_dead_slots
from rlinf_scheduler.comm.shm.holders import GROUP, MAX_SLOTS, HolderTable, table_bytes
from rlinf_scheduler.comm.shm.kernel import map_array

DEADLINE_S = 60.0
NUM_BLOCKS = 1000


@pytest.fixture
def table():
    table = HolderTable(np.zeros(table_bytes(NUM_BLOCKS), np.uint8), NUM_BLOCKS)
    table.pids[:4] = 1, 2, 3, 4
    return table


def released(table):
    return set(table.take_dirty())


def test_a_block_is_held_until_the_last_slot_has_released_it(table):
    generation = table.renew(700)
    assert table.hold(0, 700, generation)
    assert table.hold(3, 700, generation)
    table.release(0, 700)
    assert table.is_held(700)
    table.release(3, 700)
    assert not table.is_held(700)
    assert not table.is_held(701)


def test_who_comes_too_late_does_not_hold_and_leaves_nothing(table):
    old = table.renew(5)
    new = table.renew(5)
    assert new != old
    assert not table.hold(1, 5, old)
    assert not table.is_held(5)


def test_a_block_that_is_held_has_no_next_generation_yet(table):
    generation = table.renew(5)
    table.hold(1, 5, generation)
    assert table.renew(5) is None


def test_only_groups_in_which_something_was_released_are_looked_at_and_once(table):
    generation = table.renew(2 * GROUP + 7)
    table.hold(1, 2 * GROUP + 7, generation)
    assert released(table) == set()
    table.release(1, 2 * GROUP + 7)
    assert released(table) == {2}
    assert released(table) == set()


def test_of_a_group_it_is_known_which_blocks_nobody_holds(table):
    for index in (GROUP, GROUP + 9, 2 * GROUP):
        table.hold(2, index, table.renew(index))
    assert [index for index, free in enumerate(table.unheld(1)) if not free] == [0, 9]


class Holders(RuleBasedStateMachine):
    """What the table says is what a set of (slot, block) says."""

    def __init__(self):
        super().__init__()
        self.table = HolderTable(np.zeros(table_bytes(NUM_BLOCKS), np.uint8), NUM_BLOCKS)
        self.table.pids[:3] = 1
        self.held = set()
        self.generations = {}
        self.marked = set()

    indexes = st.sampled_from([0, 1, GROUP - 1, GROUP, NUM_BLOCKS - 1])
    slots = st.integers(0, 2)

    @rule(slot=slots, index=indexes, late=st.integers(0, 2))
    def hold(self, slot, index, late):
        if (slot, index) in self.held:
            return
        generation = self.generations.get(index, 0) + late
        assert self.table.hold(slot, index, generation) == (not late)
        if late:
            self.marked.add(index // GROUP)
        else:
            self.held.add((slot, index))

    @rule(slot=slots, index=indexes)
    def release(self, slot, index):
        if (slot, index) in self.held:
            self.held.remove((slot, index))
            self.table.release(slot, index)
            self.marked.add(index // GROUP)

    @rule(index=indexes)
    def renew(self, index):
        if not any(held == index for _, held in self.held):
            self.generations[index] = self.table.renew(index)
            assert self.generations[index] is not None

    @rule()
    def look(self):
        groups = released(self.table)
        assert self.marked <= groups
        self.marked.clear()

    @invariant()
    def agrees(self):
        for index in (0, 1, GROUP - 1, GROUP, NUM_BLOCKS - 1):
            assert self.table.is_held(index) == any(held == index for _, held in self.held)


Holders.TestCase.settings = settings(max_examples=tries(20), stateful_step_count=30, deadline=None)
test_the_table_is_a_set_of_who_holds_what = Holders.TestCase


# -- slots ---------------------------------------------------------------------------------------


@pytest.fixture
def shared():
    """A table in memory that other processes may open: (descriptor, table)."""
    size = 4096 + table_bytes(NUM_BLOCKS)
    fd = kernel.create(size)
    yield fd, HolderTable(map_array(fd, size)[4096:], NUM_BLOCKS)
    os.close(fd)


def claim(fd, table):
    """As a process of its own would: (its descriptor, its slot)."""
    own = kernel.open_of(os.getpid(), fd)
    return own, claim_slot(own, table)


def test_each_process_has_a_slot_of_its_own_until_there_are_none(shared):
    fd, table = shared
    claimed = [claim(fd, table) for _ in range(MAX_SLOTS)]
    assert sorted(slot for _, slot in claimed) == list(range(MAX_SLOTS))
    own = kernel.open_of(os.getpid(), fd)
    with pytest.raises(OSError, match="as many processes"):
        claim_slot(own, table)
    gone, slot = claimed.pop(7)
    os.close(gone)
    assert claim_slot(own, table) == slot
    for descriptor, _ in [*claimed, (own, 0)]:
        os.close(descriptor)


def test_what_a_gone_process_held_and_pinned_is_released_when_the_owner_looks_or_another_takes_its_slot(
    shared,
):
    fd, table = shared
    for again in (lambda: clear_dead_slots(fd, table), lambda: claim(fd, table)):
        other, slot = claim(fd, table)
        generation = table.renew(9)
        assert table.hold(slot, 9, generation)
        table.pin(slot, 9)
        released(table)
        assert not clear_dead_slots(fd, table)
        assert table.is_held(9)
        assert table.is_pinned(9)
        os.close(other)
        table.pids[table.pids == 0] = 1  # no slot is fresh
        again()
        assert not table.is_held(9)
        assert not table.is_pinned(9)
        assert 0 in released(table)


def test_an_owner_that_renews_and_a_process_that_holds_never_both_succeed(shared):
    """Each as fast as it can: the process says of which generation it is sure; the owner finds none but the last."""
    fd, table = shared
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    args = (theirs, os.getpid(), fd, NUM_BLOCKS)
    process = context.Process(target=arena_peers.hold_again_and_again, args=args, daemon=True)
    process.start()
    assert ours.poll(DEADLINE_S)
    slot = ours.recv()
    sure = slot * table.row_bytes + arena_peers.SURE_AT
    num_renewed = num_refused = 0
    is_over = False
    while not is_over:
        is_over = ours.poll(0)
        for _ in range(100):
            generation = table.renew(0)
            if generation is None:
                num_refused += 1
            else:
                num_renewed += 1
                assert table._cells[sure] in (0, arena_peers.consumed_byte_of(generation))
    assert ours.recv() > 0
    assert num_renewed > 0
    process.join(DEADLINE_S)


def look_for_a_while(look):
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        for _ in range(100):
            look()


def test_what_others_change_meanwhile_can_be_looked_at(table):
    with arena_peers.changing(1 << 16) as memory:
        table._dirty = memory.data
        look_for_a_while(table.take_dirty)
        table._pids = memory.data
        look_for_a_while(table.slots)
