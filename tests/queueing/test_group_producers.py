"""A channel whose producers are the ranks of a group is over when all that are there are done, whatever happens."""

import random

from rlinf_scheduler.queueing.members import GroupRanks
from rlinf_scheduler.queueing.producers import GroupProducers


class Story:
    """Ranks that come, finish, fail, die and are succeeded while their group is resized; and what must be of each."""

    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.members = GroupRanks("env", tuple(range(self.dice.randint(1, 3))))
        self.known = self.launched = None  # the ranks, as anybody has said them, and when they were launched
        self.producers = GroupProducers("env")
        self.at_work = {}  # the process of each rank that is in its block
        self.done = set()
        self.vacant = {}
        self.num_processes = 0

    def act(self):
        act = self.dice.choice(
            [*[self.join] * 6, *[self.leave] * 4, *[self.die] * 2, *[self.resize] * 2, self.launch_anew]
        )
        act(self.dice.randrange(5))
        waited_for = [] if self.known is None else [rank for rank in self.known if rank not in self.done]
        is_over = self.known is not None and not waited_for and not self.at_work
        assert self.producers.over == is_over, self.producers.describe()

    def join(self, rank):
        if rank not in self.members.ranks:
            return
        # Also one whose predecessor is not known to be dead.
        self.num_processes += 1
        client = f"client{self.num_processes}"
        self.hear()
        assert self.producers.join(client, 1, f"env:{rank}", self.members)
        self.at_work[rank] = client
        self.done.discard(rank)
        self.vacant.pop(rank, None)

    def leave(self, rank):
        client = self.at_work.pop(rank, None)
        if client is None:
            return
        failed = self.dice.random() < 0.3
        vacancy = self.producers.leave(client, 1, failed=failed)
        self.note_left(rank, failed, vacancy)

    def die(self, rank):
        client = self.at_work.pop(rank, None)
        if client is not None:
            self.note_left(rank, True, next(iter(self.producers.lose(client)), None))
        elif rank in self.vacant and self.dice.random() < 0.5:  # nobody has come for too long
            self.producers.give_up(self.vacant.pop(rank))
            self.done.add(rank)

    def note_left(self, rank, failed, vacancy):
        is_awaited = failed and rank in self.known
        assert (vacancy is not None) == is_awaited
        if is_awaited:
            self.vacant[rank] = vacancy
        elif rank in self.known:
            self.done.add(rank)

    def resize(self, rank):
        ranks = {*self.members.ranks} ^ {rank}
        # A number is not used again before its process has gone.
        if ranks and not (rank in ranks and rank in self.at_work):
            launched, epoch = self.members.version
            self.become(ranks, (launched, epoch + 1))

    def launch_anew(self, _rank):
        """All processes of before are gone, also where that is not known yet."""
        ranks = range(self.dice.randint(1, 4))
        self.become(ranks, (self.members.version[0] + 1, 0))

    def become(self, ranks, version):
        self.members = GroupRanks("env", tuple(sorted(ranks)), version)
        if self.dice.random() < 0.7:
            self.hear()

    def hear(self):
        vacancies = self.producers.resize(self.members)
        self.known = self.members.ranks
        self.done &= {*self.known}
        self.vacant = {rank: vacancy for rank, vacancy in self.vacant.items() if rank in self.known}
        if self.launched not in (None, self.members.version[0]):  # what was done before is to be done again
            names = {vacancy: self.producers.places.vacant[vacancy] for vacancy in vacancies}
            assert sorted(names.values()) == sorted(f"env:{rank}" for rank in self.done)
            self.vacant |= {int(name.partition(":")[2]): vacancy for vacancy, name in names.items()}
            self.done = set()
        else:
            assert not vacancies
        self.launched = self.members.version[0]


def test_in_any_order_it_is_over_when_those_are_done_that_there_are():
    for seed in range(300):
        story = Story(seed)
        for _ in range(60):
            story.act()
