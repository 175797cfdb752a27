"""Who gets what of one object: the plain class. The processes around it are tested with broadcast and weights."""

import math
import random

import pytest

from effort import case, tries
from rlinf_scheduler.comm.replication.publication import COPIES_AT_ONCE, Give, Publication, Reader, Refer


def readers_of(machines):
    return [Reader(ticket, f"{machine}{ticket}", machine) for ticket, machine in enumerate(machines)]


def test_readers_of_its_machine_get_it_at_once():
    publication = Publication("a", replicated=True)
    for reader in readers_of("aaa"):
        assert publication.ask(reader) == [Give(reader.ticket, keep=False)]


def test_without_replicas_everybody_gets_it_at_once():
    publication = Publication("a", replicated=False)
    for reader in readers_of("bbc"):
        assert publication.ask(reader) == [Give(reader.ticket, keep=False)]


def test_a_replica_that_gives_up_is_replaced_by_who_waits():
    publication = Publication("a", replicated=True)
    first, second, third = readers_of("bbb")
    assert publication.ask(first) == [Give(0, keep=True)]
    assert publication.ask(second) == publication.ask(third) == []
    assert publication.lost(first.process_id) == [Give(1, keep=True)]
    assert publication.kept(first.process_id) is None, "it is none any more"
    assert publication.kept(second.process_id) == [Refer(2, second.process_id, keep=False)]
    assert publication.ready() == [second.process_id]


def test_who_does_not_wait_any_more_is_not_answered():
    publication = Publication("a", replicated=True)
    first, second, third = readers_of("bbb")
    for reader in (first, second, third):
        publication.ask(reader)
    publication.withdraw(second.ticket)
    assert publication.kept(first.process_id) == [Refer(2, first.process_id, keep=False)]


def test_machines_copy_from_each_other_and_from_nobody_more_than_two_at_a_time():
    publication = Publication("a", replicated=True)
    b, c, d, e, f = readers_of("bcdef")
    assert publication.ask(b) == [Give(0, keep=True)]
    assert publication.ask(c) == [Give(1, keep=True)]
    assert publication.ask(d) == publication.ask(e) == publication.ask(f) == []
    assert publication.kept(c.process_id) == [
        Refer(2, c.process_id, keep=True),
        Give(3, keep=True),
        Refer(4, c.process_id, keep=True),
    ]
    assert publication.is_copying(d.process_id)
    assert not publication.is_copying(c.process_id)


def test_a_machine_that_nobody_asks_for_any_more_is_passed_over():
    publication = Publication("a", replicated=True)
    b, c, d, e = readers_of("bcde")
    for reader in (b, c, d, e):
        publication.ask(reader)
    publication.withdraw(d.ticket)
    assert publication.kept(b.process_id)[0] == Refer(e.ticket, b.process_id, keep=True)


def test_what_copied_from_a_replica_of_a_former_life_frees_no_place_of_its_new_one():
    publication = Publication("a", replicated=True)
    b, c, d, e, f, g = readers_of("bcdefg")
    for reader in (b, c, d):
        publication.ask(reader)
    assert publication.kept(b.process_id) == [Refer(d.ticket, b.process_id, keep=True)]
    publication.lost(b.process_id)
    again = Reader(10, b.process_id, "b")
    assert publication.ask(again) == [Give(10, keep=True)]
    assert publication.kept(b.process_id) == []
    assert publication.ask(e) == [Refer(e.ticket, b.process_id, keep=True)]
    assert publication.ask(f) == [Give(f.ticket, keep=True)]
    publication.kept(d.process_id)
    assert publication.ask(g) == [Refer(g.ticket, d.process_id, keep=True)]


def test_machines_that_take_too_long_make_room_for_others_and_are_replicas_when_they_have_it():
    publication = Publication("a", replicated=True)
    b, c, d, e, f = readers_of("bcdef")
    for reader in (b, c, d, e, f):
        publication.ask(reader)
    assert publication.overdue(b.process_id) == [Give(d.ticket, keep=True)]
    assert publication.overdue(b.process_id) == publication.overdue("nobody") == []
    assert publication.kept(b.process_id) == [
        Refer(e.ticket, b.process_id, keep=True),
        Refer(f.ticket, b.process_id, keep=True),
    ]
    assert publication.lost(c.process_id) == []
    assert publication.overdue(b.process_id) == []


def test_nobody_copies_any_more_from_who_was_too_slow_but_its_own_machine():
    publication = Publication("a", replicated=True)
    b, c, d, e, again = readers_of("bcdeb")
    publication.ask(b)
    publication.kept(b.process_id)
    publication.ask(c)
    assert publication.spare(b.process_id) == publication.spare("nobody") == []
    assert publication.ask(d) == [Give(d.ticket, keep=True)]
    assert publication.ask(again) == [Refer(again.ticket, b.process_id, keep=False)]
    assert publication.ready() == [b.process_id]
    assert publication.ask(e) == []


@pytest.mark.parametrize("machines", [1, 10, 1000])
def test_it_reaches_all_machines_in_a_time_that_grows_with_the_logarithm_of_their_number(machines):
    publication = Publication("a", replicated=True)
    copying = []
    for ticket in range(machines):
        for reader in range(3):
            number = 3 * ticket + reader
            copying += publication.ask(Reader(number, f"p{number}", f"m{ticket}"))
    waves, heard = 0, []
    while copying:
        waves += 1
        heard += copying
        done, copying = [f"p{given.ticket}" for given in copying if given.keep], []
        for process_id in done:
            copying += publication.kept(process_id)
    assert sorted(given.ticket for given in heard) == list(range(3 * machines))
    assert len(publication.ready()) == machines
    # The last wave refers those that wait on their own machine.
    assert waves <= 2 + math.ceil(math.log(machines + 1, 1 + COPIES_AT_ONCE))


class Readers:
    """What all readers of one object hear, checked as it comes."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.publication = Publication("a", replicated=True)
        self.machine_of = {}
        self.answered = set()
        self.withdrawn = set()
        self.replicas = {}  # by machine
        self.have_it = set()
        self.sources = {}  # whom replicas copy from

    def follow(self, instructions):
        for instruction in instructions:
            assert instruction.ticket not in self.answered | self.withdrawn
            self.answered.add(instruction.ticket)
            machine = self.machine_of[instruction.ticket]
            if not instruction.keep:
                assert isinstance(instruction, Give) == (machine == "a")
                assert machine == "a" or self.replicas[machine] == instruction.process_id
                continue
            assert machine not in self.replicas
            self.replicas[machine] = reader = f"p{instruction.ticket}"
            self.sources[reader] = source = "" if isinstance(instruction, Give) else instruction.process_id
            assert source == "" or source in self.have_it
            assert list(self.sources.values()).count(source) <= COPIES_AT_ONCE

    def ask(self):
        ticket, machine = len(self.machine_of), self.random.choice("abcdefgh")
        self.machine_of[ticket] = machine
        self.follow(self.publication.ask(Reader(ticket, f"p{ticket}", machine)))

    def withdraw(self):
        waiting = [ticket for ticket in self.machine_of if ticket not in self.answered | self.withdrawn]
        if waiting:
            self.withdrawn.add(ticket := self.random.choice(waiting))
            self.publication.withdraw(ticket)

    def keep(self, process_id=None):
        if process_id or self.replicas:
            process_id = process_id or self.random.choice(sorted(self.replicas.values()))
            self.sources.pop(process_id, None)
            self.have_it.add(process_id)
            self.follow(self.publication.kept(process_id))

    def lose(self):
        if self.replicas:
            process_id = self.replicas.pop(self.random.choice(sorted(self.replicas)))
            self.sources.pop(process_id, None)
            self.have_it.discard(process_id)
            self.follow(self.publication.lost(process_id))


def test_whatever_happens_every_reader_is_answered_once_and_a_machine_has_one_replica():
    for seed in range(tries(200)):
        readers = Readers(seed)
        with case(seed):
            for _ in range(100):
                happens = [readers.ask, readers.ask, readers.keep, readers.lose, readers.withdraw]
                readers.random.choice(happens)()
            while readers.sources:
                readers.keep(next(iter(readers.sources)))
            assert sorted(readers.publication.ready()) == sorted(readers.replicas.values())
            assert readers.answered | readers.withdrawn == set(readers.machine_of)
