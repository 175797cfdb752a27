"""Who gets what of one object: the plain class. The processes around it are tested with broadcast and weights."""

import random

import pytest

from effort import case, tries
from rlinf_scheduler.comm.replication.publication import Give, Publication, Reader, Refer

FROM_PUBLISHER = ""


def readers_of(machines):
    return [Reader(ticket, f"{machine}{ticket}", machine) for ticket, machine in enumerate(machines)]


def copied_from(publication, *readers):
    """Where the machines of these copy from, one after the other."""
    answers = [publication.ask(reader) for reader in readers]
    assert [[(each.ticket, each.keep) for each in answer] for answer in answers] == [
        [(reader.ticket, True)] for reader in readers
    ]
    return [answer[0].process_id for answer in answers]


def test_readers_of_its_machine_get_it_at_once():
    publication = Publication("a", replicated=True)
    for reader in readers_of("aaa"):
        assert publication.ask(reader) == [Give(reader.ticket)]


def test_without_replicas_everybody_gets_it_at_once():
    publication = Publication("a", replicated=False)
    for reader in readers_of("bbc"):
        assert publication.ask(reader) == [Give(reader.ticket)]


def test_a_replica_that_gives_up_is_replaced_by_who_waits():
    publication = Publication("a", replicated=True)
    first, second, third = readers_of("bbb")
    assert publication.ask(first) == [Refer(0, FROM_PUBLISHER, keep=True)]
    assert publication.ask(second) == publication.ask(third) == []
    assert publication.lost(first.process_id) == [Refer(1, FROM_PUBLISHER, keep=True)]
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


def test_an_object_of_many_pieces_goes_down_a_chain():
    publication = Publication("a", replicated=True, num_pieces=64)
    b, c, d, e = readers_of("bcde")
    assert copied_from(publication, b, c, d, e) == [FROM_PUBLISHER, *(each.process_id for each in (b, c, d))]


def test_an_object_of_one_piece_goes_down_a_tree_that_doubles_with_each_hand():
    publication = Publication("a", replicated=True, num_pieces=1)
    b, c, d, e, f, g, h = readers_of("bcdefgh")
    sources = ["", "", b.process_id, c.process_id, "", f.process_id, b.process_id]
    assert copied_from(publication, b, c, d, e, f, g, h) == sources


def test_who_has_it_all_gives_to_the_next_before_who_is_far_down_the_chain():
    publication = Publication("a", replicated=True, num_pieces=3)
    b, c, d, e = readers_of("bcde")
    copied_from(publication, b, c, d)
    assert publication.kept(b.process_id) == []
    publication.lost(c.process_id)
    assert copied_from(publication, e) == [FROM_PUBLISHER], "nobody copies from the publisher any more"


def test_a_replica_that_cannot_go_on_is_sent_elsewhere_and_keeps_those_behind_it():
    publication = Publication("a", replicated=True, num_pieces=64)
    b, c, d = readers_of("bcd")
    copied_from(publication, b, c, d)
    publication.lost(b.process_id)
    assert not publication.copies_from(c.process_id, b.process_id), "as it would be now"
    again = Reader(9, c.process_id, "c")
    assert publication.move(again) == [Refer(9, FROM_PUBLISHER, keep=True)]
    assert publication.copies_from(d.process_id, c.process_id)
    assert publication.kept(c.process_id) == []
    late = Reader(10, c.process_id, "c")
    assert publication.move(late) == [Refer(10, c.process_id, keep=False)], "it has it"


def test_nobody_else_copies_from_who_was_too_slow_but_its_own_machine():
    publication = Publication("a", replicated=True, num_pieces=64)
    b, c, d, again = readers_of("bcdb")
    copied_from(publication, b)
    publication.slow(b.process_id)
    publication.slow("nobody")
    assert copied_from(publication, c) == [FROM_PUBLISHER]
    assert publication.kept(b.process_id) == []
    assert copied_from(publication, d) == [c.process_id]
    assert publication.ask(again) == [Refer(again.ticket, b.process_id, keep=False)]
    assert publication.ready() == [b.process_id]


def test_who_finds_one_after_the_other_too_slow_has_a_slow_link_itself():
    publication = Publication("a", replicated=True, num_pieces=64)
    b, c, d, e, f = readers_of("bcdef")
    copied_from(publication, b, c)
    publication.kept(b.process_id)
    publication.kept(c.process_id)
    assert copied_from(publication, d, e) == [FROM_PUBLISHER, b.process_id]
    publication.slow(b.process_id, e.process_id)
    assert publication.move(Reader(9, e.process_id, "e")) == [Refer(9, c.process_id, keep=True)]
    publication.slow(c.process_id, e.process_id)
    assert copied_from(publication, f) == [b.process_id], "nobody else has to do without either"


def test_who_takes_too_long_is_to_blame_only_if_all_is_there_where_it_copies_from():
    publication = Publication("a", replicated=True, num_pieces=64)
    b, c, d = readers_of("bcd")
    copied_from(publication, b, c, d)
    assert publication.overdue(c.process_id) is None
    assert publication.overdue(b.process_id) == [c.process_id]
    assert publication.overdue(b.process_id) == [c.process_id], "until that has moved"
    assert publication.move(Reader(9, c.process_id, "c")) == [Refer(9, FROM_PUBLISHER, keep=True)]
    assert publication.overdue(b.process_id) == publication.overdue("nobody") == []
    publication.kept(c.process_id)
    assert publication.overdue(c.process_id) == []
    assert publication.overdue(d.process_id) == []


@pytest.mark.parametrize(
    ("machines", "num_pieces", "most_hands", "most_copies"),
    [(8, 64, 8, 1), (64, 64, 64, 1), (1000, 64, 200, 4), (1000, 1, 12, 6)],
)
def test_pieces_go_through_few_hands_beside_few_others(machines, num_pieces, most_hands, most_copies):
    publication = Publication("a", replicated=True, num_pieces=num_pieces)
    copies, hands = {FROM_PUBLISHER: 0}, {FROM_PUBLISHER: 0}
    for reader in readers_of([f"m{number}" for number in range(machines)]):
        (source,) = copied_from(publication, reader)
        copies[source] += 1
        copies[reader.process_id] = 0
        hands[reader.process_id] = hands[source] + 1
    assert max(hands.values()) <= most_hands
    assert max(copies.values()) <= most_copies


class World:
    """Processes that copy one object piece by piece as they are told to, and die, stop, go on, join and give up."""

    NUM_PIECES = 6

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.publication = Publication("a", replicated=True, num_pieces=self.NUM_PIECES)
        self.machine_of = {}  # by ticket
        self.answered = set()
        self.withdrawn = set()
        self.asked_by = {}  # ticket -> process
        self.machines = {}  # of replicas, by process
        self.sources = {}  # whom replicas copy from
        self.filled = {FROM_PUBLISHER: self.NUM_PIECES}
        self.got = []  # every piece that a process took

    def follow(self, instructions):
        for instruction in instructions or ():
            ticket = instruction.ticket
            assert ticket not in self.answered | self.withdrawn
            self.answered.add(ticket)
            machine, process = self.machine_of[ticket], self.asked_by[ticket]
            if isinstance(instruction, Give):
                assert machine == "a"
            elif not instruction.keep:
                assert self.machines[instruction.process_id] == machine
                assert self.filled[instruction.process_id] == self.NUM_PIECES
            else:
                moves = process in self.machines
                assert moves or machine not in self.machines.values(), "one replica a machine"
                assert instruction.process_id in self.filled, "who is gone gives nothing"
                self.machines[process] = machine
                self.sources[process] = instruction.process_id
                self.filled.setdefault(process, 0)

    def question(self, process, machine):
        ticket = len(self.machine_of)
        self.machine_of[ticket], self.asked_by[ticket] = machine, process
        return Reader(ticket, process, machine)

    def ask(self):
        machine = self.random.choice("abcdefgh")
        self.follow(self.publication.ask(self.question(f"p{len(self.machine_of)}", machine)))

    def withdraw(self):
        waiting = [ticket for ticket in self.machine_of if ticket not in self.answered | self.withdrawn]
        if waiting:
            self.withdrawn.add(ticket := self.random.choice(waiting))
            self.publication.withdraw(ticket)

    def copying(self):
        return [process for process in self.sources if self.filled[process] < self.NUM_PIECES]

    def take(self, process=None):
        """One copies the next piece, if it is there; of those that are gone it hears, and asks again."""
        process = process or (self.copying() and self.random.choice(self.copying()))
        if not process:
            return False
        source = self.sources[process]
        if source not in self.filled:
            self.follow(self.publication.move(self.question(process, self.machines[process])))
            return True
        if self.filled[source] <= self.filled[process]:
            return False
        self.got.append((process, self.filled[process]))
        self.filled[process] += 1
        if self.filled[process] == self.NUM_PIECES:
            del self.sources[process]
            self.follow(self.publication.kept(process))
        return True

    def die(self):
        if self.machines:
            process = self.random.choice(sorted(self.machines))
            del self.machines[process], self.filled[process]
            self.sources.pop(process, None)
            self.follow(self.publication.lost(process))

    def complain(self):
        """One finds that it is late where it copies from."""
        if self.copying():
            process = self.random.choice(self.copying())
            if self.publication.copies_from(process, self.sources[process]):
                self.publication.slow(self.sources[process], process)
            self.follow(self.publication.move(self.question(process, self.machines[process])))

    def overdue(self):
        if self.copying():
            process = self.random.choice(self.copying())
            for behind in self.publication.overdue(process) or ():
                if behind in self.sources:
                    self.follow(self.publication.move(self.question(behind, self.machines[behind])))


def test_every_machine_gets_every_piece_once_whatever_dies_is_slow_or_gives_up():
    for seed in range(tries(300)):
        world = World(seed)
        with case(seed):
            for _ in range(150):
                happens = [world.ask, world.ask, *[world.take] * 6, world.die, world.withdraw]
                happens += [world.complain, world.overdue]
                world.random.choice(happens)()
            while world.copying():
                assert any(map(world.take, world.copying())), "they wait for each other"
            assert sorted(world.publication.ready()) == sorted(world.machines)
            assert not world.publication.is_busy
            assert world.answered | world.withdrawn == set(world.machine_of)
            assert len(set(world.got)) == len(world.got)
            for process in world.machines:
                assert {(process, piece) for piece in range(world.NUM_PIECES)} <= set(world.got)
