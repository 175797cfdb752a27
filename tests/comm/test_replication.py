"""Who gets what of one object: the plain class. The processes around it are tested with broadcast and weights."""

import random

import pytest

from rlinf.scheduler.comm.replication.publication import Give, Publication, Reader, Refer


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
    assert publication.kept(second.process_id) == [Refer(2, second.process_id)]
    assert publication.ready() == [second.process_id]


def test_who_does_not_wait_any_more_is_not_answered():
    publication = Publication("a", replicated=True)
    first, second, third = readers_of("bbb")
    for reader in (first, second, third):
        publication.ask(reader)
    publication.withdraw(second.ticket)
    assert publication.kept(first.process_id) == [Refer(2, first.process_id)]


class Readers:
    """What all readers of one object hear, checked as it comes."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.publication = Publication("a", replicated=True)
        self.machine_of = {}
        self.answered = set()
        self.withdrawn = set()
        self.replicas = {}  # by machine

    def follow(self, instructions):
        for instruction in instructions:
            assert instruction.ticket not in self.answered | self.withdrawn
            self.answered.add(instruction.ticket)
            machine = self.machine_of[instruction.ticket]
            if isinstance(instruction, Refer):
                assert self.replicas[machine] == instruction.process_id
            elif instruction.keep:
                assert machine not in self.replicas
                self.replicas[machine] = f"p{instruction.ticket}"
            else:
                assert machine == "a"

    def ask(self):
        ticket, machine = len(self.machine_of), self.random.choice("abc")
        self.machine_of[ticket] = machine
        self.follow(self.publication.ask(Reader(ticket, f"p{ticket}", machine)))

    def withdraw(self):
        waiting = [ticket for ticket in self.machine_of if ticket not in self.answered | self.withdrawn]
        if waiting:
            self.withdrawn.add(ticket := self.random.choice(waiting))
            self.publication.withdraw(ticket)

    def keep(self):
        if self.replicas:
            self.follow(self.publication.kept(self.random.choice(sorted(self.replicas.values()))))

    def lose(self):
        if self.replicas:
            process_id = self.replicas.pop(self.random.choice(sorted(self.replicas)))
            self.follow(self.publication.lost(process_id))


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_every_reader_is_answered_once_and_a_machine_has_one_replica(seed):
    readers = Readers(seed)
    for _ in range(60):
        readers.random.choice([readers.ask, readers.ask, readers.keep, readers.lose, readers.withdraw])()
    for process_id in sorted(readers.replicas.values()):
        readers.follow(readers.publication.kept(process_id))
    assert sorted(readers.publication.ready()) == sorted(readers.replicas.values())
    assert readers.answered | readers.withdrawn == set(readers.machine_of)
