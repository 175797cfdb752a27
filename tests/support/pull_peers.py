"""What the other processes of the tests of pulling do; each function runs in one that `Job.start` starts."""

import importlib
import os
import sys
import threading

from rlinf_scheduler.comm.pull import agent, pulls
from rlinf_scheduler.errors import CommError
from weights_peers import asked, member, numbers_in, state

ELEMENTS = 800_000
SIZE_BYTES = 10 * ELEMENTS * 4


def _member(
    secret, machine, directory, name, pull=True, stack=None, refuse="", stall_s=None, wheel="nixl_cu13"
):
    # Between two machines that is what there is; on one, UCX copies from process to process at once.
    os.environ["UCX_TLS"] = "tcp"
    if stack is None and wheel != "nixl":
        # To choose that one by itself, `nixl` loads torch, for seconds, where this has no CUDA.
        sys.modules["nixl"] = importlib.import_module(wheel)
    messenger, weights = member(secret, machine, name, directory)
    if stack is not None:
        pulls.nixl_stack = lambda: stack
    if refuse:
        setattr(agent.Agent, refuse, _refused)
    if stall_s is not None:
        pulls.STALL_S = stall_s
    if pull:
        pulls.begin_to_pull(messenger)
    return messenger, weights


def _refused(*_args):
    raise agent.PullError("the test refuses it")


def _pulled(messenger):
    """What it has pulled, and how much of its own others may be reading."""
    made = messenger.pulls
    return None if made is None else (made.stats(), len(made.offer.__self__._lent))


def publish(pipe, secret, machine, directory, name, options):
    """Publishes each version that comes through the pipe; None asks for what `_pulled` says."""
    messenger, weights = _member(secret, machine, directory, name, **options)
    pipe.send(messenger.endpoint)
    for version in asked(pipe):
        if version is None:
            pipe.send(_pulled(messenger))
        else:
            weights.publish("policy", state(version, elements=ELEMENTS), version)
            pipe.send(version)


def fetch(pipe, secret, machine, directory, name, options):
    """Does what comes through the pipe: "fetch", "wait" for it or "drop" it, "pause", "go" on, tell what was "pulled".

    A pause is in the middle of a pull. It begins with a word to the test, when a part is here and a part is on its way.
    """
    messenger, weights = _member(secret, machine, directory, name, **options)
    into = state(-1, elements=ELEMENTS)
    may_go = threading.Event()
    pipe.send(messenger.endpoint)
    handle = None
    for word, *args in asked(pipe):
        if word == "fetch":
            handle = weights.fetch("policy", into, **args[0])
        elif word == "wait":
            try:
                pipe.send((handle.wait(), numbers_in(into)))
            except CommError as error:
                pipe.send(error)
        elif word == "pause":
            _pause_in_the_middle(pipe, may_go)
        elif word == "drop":
            handle = None
        elif word == "go":
            may_go.set()
        else:
            pipe.send(_pulled(messenger))


def _pause_in_the_middle(pipe, may_go):
    go_on = pulls.Pulls._go_on

    def pausing(self, *args):
        if self.stats.pieces > 1 and not may_go.is_set():
            pipe.send("in the middle")
            may_go.wait()
        go_on(self, *args)

    pulls.Pulls._go_on = pausing


def fork_while_pulling(pipe, secret, machine, directory, name, options):
    """Fetches, forks a child, and sends how that ended and what it fetches afterwards."""
    messenger, weights = _member(secret, machine, directory, name, **options)
    into = state(-1, elements=ELEMENTS)
    pipe.send(messenger.endpoint)
    pipe.send(weights.fetch("policy", into, timeout_s=60).wait())
    child = os.fork()
    if not child:
        raise SystemExit(7)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    pipe.send((ended, weights.fetch("policy", into, timeout_s=60).wait(), _pulled(messenger)))
    pipe.recv()
