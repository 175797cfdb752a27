"""A worker that draws random numbers; in a module of its own, so that ranks import it by name."""

import os
import random
import signal

import numpy as np

from rlinf.scheduler import Worker


class Drawing(Worker):
    """Draws in __init__."""

    def __init__(self):
        super().__init__()
        self.drawn = self.seed, os.environ["RLINF_SEED"], random.random(), float(np.random.random())

    def what(self):
        return self.drawn

    def die_once(self):
        if not self.num_restarts:
            os.kill(os.getpid(), signal.SIGKILL)
