"""Ranks whose data loaders have processes; apart from others that have some, since torch takes a process seconds."""

from torch.utils.data import DataLoader

from joined_workers import DEADLINE_S
from rlinf.scheduler import Worker


class Loading(Worker):
    def load(self):
        """The addresses that the workers of a `DataLoader` say."""
        loader = DataLoader(Addresses(), batch_size=None, num_workers=2, worker_init_fn=join_as)
        return sorted(set(loader))


class Addresses:
    """A data set: each item is the address of the worker that loaded it."""

    def __len__(self):
        return 4

    def __getitem__(self, _):
        return str(Worker().address)


def join_as(number):
    Worker.join_parent(number, timeout_s=DEADLINE_S)
