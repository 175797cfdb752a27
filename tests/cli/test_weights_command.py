"""`rlinf weights`: another terminal looks at the weights of a running job, which is one process here."""

import json
import os
from collections import Counter

import numpy as np
import pytest

from programs import RLINF, run_program
from rlinf.testing import LocalRuntime
from rlinf_scheduler.comm.replication.deltas import MachineCopies
from rlinf_scheduler.session import Session
from rlinf_scheduler.weights import open_weights, published_weights


def rlinf_weights(*arguments):
    return run_program("-c", RLINF, "weights", *arguments, "--job", str(os.getpid()))


@pytest.fixture
def job():
    """A job whose driver publishes, and in which another process has fetched."""
    with LocalRuntime() as session:
        other = Session(session.secret, "rollout:0", home=session.home)
        for name in ("policy", "critic"):
            session.service(open_weights).publish(name, {"w": np.zeros(3)}, 4)
        copies = session.service(open_weights)._versions._publisher.copies
        copies["policy"] = MachineCopies(Counter({"delta": 2, "no version before": 1}))
        other.service(open_weights).fetch("policy", {"w": np.zeros(3)}, timeout_s=60).wait()
        yield session
        other.close()


def test_another_terminal_sees_the_weights_of_a_job(job):
    done = rlinf_weights()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "'critic': version 4, 24 bytes of 1 process",
        "source  driver  24 bytes",
        "'policy': version 4, 24 bytes of 1 process",
        "source  driver     24 bytes",
        "reader  rollout:0  version 4",
        "copies  driver     2 delta",
        "copies  driver     1 no version before",
    ]
    assert json.loads(rlinf_weights("--json").stdout)["policy"] == {
        "name": "policy",
        "version": 4,
        "sources": {"driver": 24},
        "incomplete": {},
        "readers": {"rollout:0": 4},
        "copies": {"driver": {"delta": 2, "no version before": 1}},
    }


def test_another_terminal_sees_who_reads_how_much_from_whom(job):
    done = rlinf_weights("plan", "policy")
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [
        ["reader", "version", "reads", "from", "by", "way", "of"],
        ["rollout:0", "4", "24", "bytes", "driver", "node,", "a", "message"],
    ]
    assert json.loads(rlinf_weights("plan", "--json").stdout) == {
        "critic": {"name": "critic", "readers": {}},
        "policy": {
            "name": "policy",
            "readers": {
                "rollout:0": {
                    "version": 4,
                    "flows": [{"source": "driver", "bytes": 24, "way": "node", "by": "a message", "why": ""}],
                }
            },
        },
    }


def test_a_name_that_is_misspelt_is_an_error_that_says_which_one_is_like_it(job):
    done = rlinf_weights("plan", "critic", "polcy")
    told = "'polcy' is not among the weights of this job: 'critic', 'policy'; did you mean 'policy'?"
    assert (done.returncode, done.stdout) == (2, "")
    assert f"rlinf: {told}\n" in done.stderr
    with pytest.raises(KeyError, match="did you mean 'policy'"):
        published_weights(job)["polcy"]
    assert published_weights(job).get("polcy") is None


def test_a_job_without_weights_says_so():
    with LocalRuntime():
        done = rlinf_weights()
    assert (done.returncode, done.stdout) == (1, "the job has no weights\n")
