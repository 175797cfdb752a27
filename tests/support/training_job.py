"""A small training job of plain processes that can be killed as a whole at any moment, and resumes from its checkpoint.

A source puts numbered items, a rollout worker (of two stages) hands them on, and the driver trains: its state is the
list of the numbers that it has trained on. The rest of an item says whether its bytes are the right ones.
"""

import os
import pickle
import random
import signal
from multiprocessing import get_context

import numpy as np

from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime

WAIT_S = 60.0
# Some lie in shared memory, others travel in messages.
MAX_LENGTH = 12_000
BOUND = 8
_context = get_context("forkserver")
_context.set_forkserver_preload(["training_job"])


def start(folder, stages, seed):
    """Start the job; it is a process group of its own."""
    job = _context.Process(target=_run, args=(folder, stages, seed), daemon=False)
    job.start()
    return job


def kill(job):
    """Kill all its processes at once."""
    try:
        os.killpg(job.pid, signal.SIGKILL)
    except ProcessLookupError:  # it has not made its group yet, and no other process
        job.kill()
    job.join(WAIT_S)


def _run(folder, stages, seed):
    os.setsid()
    names = ["tasks", "results"][:stages]
    tell = [_fork(_source, "source:0")]
    if stages > 1:
        tell.append(_fork(_rollout, "rollout:0"))
    with LocalRuntime() as runtime:
        saved = runtime.load(folder, missing_ok=True)
        channels = [Channel.create(name, maxsize=BOUND, restore=saved) for name in names]
        for pipe in tell:
            with os.fdopen(pipe, "wb") as file:
                pickle.dump(runtime.address, file)
        _train(runtime, folder, channels, saved.extra["trained"] if saved else [], random.Random(seed))


def _train(runtime, folder, channels, trained, dice):
    known = set(trained)
    twice = 0
    while True:
        with channels[-1].lease(timeout_s=WAIT_S) as lease:
            number, data = lease.item
            if not (data == number).all():
                os.write(2, b"the bytes of an item are another's\n")
                os.killpg(0, signal.SIGKILL)
            if number in known and len(channels) > 1:
                twice += 1  # it was in both channels
            else:
                known.add(number)
                trained.append(number)
            if dice.random() < 0.3:
                extra = {"trained": trained, "twice": twice}
                runtime.save(folder, channels=channels, extra=extra, acknowledge=lease)


def _source():
    tasks = Channel.connect("tasks")
    number = tasks.stats().num_puts
    while True:
        length = _length_of(number)
        tasks.put((number, np.full(length, number)))
        number += 1


def _rollout():
    tasks, results = Channel.connect("tasks"), Channel.connect("results")
    while True:
        with tasks.lease() as lease:
            results.put(lease.item)


def _length_of(number):
    return 1 + (number * 7919) % MAX_LENGTH


def _fork(role, name):
    """Fork a process that plays a role as soon as it is told where."""
    theirs, ours = os.pipe()
    if os.fork():
        os.close(theirs)
        return ours
    os.close(ours)
    with os.fdopen(theirs, "rb") as file:
        address = pickle.load(file)
    with LocalRuntime(address, own_name=name):
        role()
    os._exit(1)
