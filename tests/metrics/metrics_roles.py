"""What ranks log in the tests of metrics, and writers that a program brings along."""

import threading
import time
from functools import partial

from rlinf.scheduler import Worker


class Trainer(Worker):
    def train(self, steps):
        for step in steps:
            with self.at_step(step):
                with self.timer("learn"):
                    pass
                self.log_metrics({"loss": float(self.rank), "return_max": self.rank, "tokens_total": 10})

    def train_while_busy(self, step):
        """Its I/O thread does something else meanwhile, and once more as soon as it has said that this is done."""
        self.train([step - 1])
        messenger, begun = self._rlinf_session.messenger, threading.Event()

        def busy():
            begun.set()
            time.sleep(0.3)

        messenger.submit(busy)
        begun.wait(60)
        messenger.submit(partial(messenger.submit, partial(time.sleep, 1.0)))
        self.train([step])

    def log(self, metrics, **options):
        self.log_metrics(metrics, **options)

    def train_or_die(self, steps):
        self.train(steps)
        if self.rank == 1:
            import os

            os._exit(9)


class Failing:
    """Takes every other row."""

    rows = ()

    def __init__(self, folder):
        type(self).rows = []

    def write(self, rows):
        for row in rows:
            if row.step % 2:
                raise OSError("the disk is full")
            self.rows.append(row)

    def close(self):
        pass


class Stuck:
    """Takes no row before it is let go on."""

    go_on = threading.Event()

    def __init__(self, folder):
        pass

    def write(self, rows):
        self.go_on.wait(60)

    def close(self):
        pass


def broken(folder):
    raise ConnectionError("no such server")
