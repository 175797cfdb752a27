"""The table of deadlines has every option of a public call that is a time to wait, with its default."""

import inspect
import re
from pathlib import Path

import pytest
from test_api_reference import documented, members

from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime
from rlinf_scheduler import errors
from rlinf_scheduler.channel.features.ends import ARRIVAL_S
from rlinf_scheduler.channel.held import FETCH_TIMEOUT_S
from rlinf_scheduler.channel.operation import ANSWER_S
from rlinf_scheduler.channel.requests import RESTART_S
from rlinf_scheduler.channel.starting import RECOVER_TIMEOUT_S, RESTORE_TIMEOUT_S, START_TIMEOUT_S
from rlinf_scheduler.cli import topology
from rlinf_scheduler.comm.rundir import REMOVED_WITHIN_S
from rlinf_scheduler.comm.transfer import FOREVER_S, checked_timeout
from rlinf_scheduler.comm.transport.peer_session import GRACE_S
from rlinf_scheduler.detached import JOB_SERVER_ANSWERS_S
from rlinf_scheduler.durable.journaled import RETURN_S
from rlinf_scheduler.host.actor_spec import LEFT_WITHIN_S, TIDY_S
from rlinf_scheduler.host.breakpoints import WAIT_S
from rlinf_scheduler.host.processes import LEAVE_GRACE_S
from rlinf_scheduler.job_server import UNOPENED_S
from rlinf_scheduler.observe import why
from rlinf_scheduler.observe.reasons import INTERRUPTED_S
from rlinf_scheduler.observe.status_service import TIMEOUT_S, WITHIN_S
from rlinf_scheduler.profiling.sampled import SENDING_S
from rlinf_scheduler.ray_backend.ending import THREADS_GRACE_S
from rlinf_scheduler.ray_backend.guard import LEFT_GRACE_S
from rlinf_scheduler.ray_backend.leaving import SHUTDOWN_WITHIN_S
from rlinf_scheduler.session.heartbeat_monitor import SILENT_S
from rlinf_scheduler.session.session import UNDONE_WITHIN_S
from rlinf_scheduler.tracing.service import CLOSING_S
from rlinf_scheduler.web.server import PATIENCE_S
from rlinf_scheduler.worker.channel_starter import WARM_S
from rlinf_scheduler.worker.group_builder import UNRESPONSIVE_AFTER_S
from rlinf_scheduler.worker.group_calls import UNREAD_GRACE_S
from rlinf_scheduler.worker.node_watch import MAX_HEADLESS_S, REFUSED_FOR_S, TOLD_AFTER_S
from rlinf_scheduler.worker.remote_group import END_WITHIN_S
from rlinf_scheduler.worker.remote_home import LEAVE_WITHIN_S, STOP_WITHIN_S
from rlinf_scheduler.worker.successors import ENDED_WITHIN_S
from rlinf_scheduler.worker.supervision import (
    KILLED_WITHIN_S,
    STOP_GRACE_S,
    TELL_S,
    UNSAID_GRACE_S,
)

PAGE = (Path(__file__).parents[2] / "docs/reference/deadlines.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([\w.]+)` \| `(\w+_s)` \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
FIXED = dict(re.findall(r"^\| (.+?) \| ([\d.]+) s \|$", PAGE, re.MULTILINE))


def written(seconds):
    return "none" if seconds is None else f"{seconds:g} s"


def options():
    """(call, option, default) of everything in the reference that takes a time to wait."""
    for thing in documented():
        if inspect.isclass(thing) and not inspect.isabstract(thing):
            for name in members(thing):
                if name != "__init__" and (name.startswith("_") or not callable(getattr(thing, name))):
                    continue
                call = thing.__name__ if name == "__init__" else f"{thing.__name__}.{name}"
                for option in inspect.signature(getattr(thing, name)).parameters.values():
                    if option.name.endswith("timeout_s") and option.default is not option.empty:
                        yield call, option.name, option.default


def test_every_deadline_stands_in_the_table_with_its_default():
    there = {(call, option, written(default)) for call, option, default in options()}
    assert {row[:3] for row in ROWS} == there
    assert len(ROWS) == len(there)


def test_no_docstring_gives_none_another_meaning_than_the_page():
    for thing in filter(inspect.isclass, documented()):
        for name, member in members(thing).items():
            told = re.findall(r"\w*timeout_s: .*?None: ([^.;\n]+)", inspect.getdoc(member) or "")
            assert {f"{name}: {each}" for each in told if re.search("hour|minute|second", each)} == set()


def test_error_at_a_deadline_is_a_timeout():
    for row in ROWS:
        for name in re.findall(r"`(\w+)`", row[3]):
            assert issubclass(getattr(errors, name), TimeoutError | LookupError), row[0]


def test_fixed_waits_are_those_of_the_code():
    assert {what.split(":")[0]: float(seconds) for what, seconds in FIXED.items()} == {
        "a channel's process that does not answer": ANSWER_S,
        "a channel's process that does not start": START_TIMEOUT_S,
        "a channel's process that does not read what the channel is restored from": RESTORE_TIMEOUT_S,
        "a durable channel that no process holds": RESTART_S,
        "a durable channel's process that does not come to the end of its journal": RECOVER_TIMEOUT_S,
        "a process that holds items of its node, and does not answer a `peek` that copies one": FETCH_TIMEOUT_S,
        "clients of a durable channel that do not come back when another process holds it are lost": RETURN_S,
        "a process that shares, and whose last channel was deleted, ends": WARM_S,
        "a peer whose connection is cut and cannot be made anew is dead": GRACE_S,
        "a Ray that does not answer where `rlinf devices` or `rlinf jobs` asks for it": topology.ANSWER_S,
        "job servers that do not answer `rlinf jobs`, which then says so": JOB_SERVER_ANSWERS_S,
        "a job server that does not say that the groups of a driver that leaves have ended": LEAVE_WITHIN_S,
        "a job server that does not say that a group has ended, beyond what `shutdown` gives its calls": END_WITHIN_S,
        "a job server that nobody has had opened, or that could not be, ends": UNOPENED_S,
        "a detached job that does not end when it is stopped": STOP_WITHIN_S,
        "a node whose raylet does not answer is told of": TOLD_AFTER_S,
        "a node whose raylet does not answer is gone": GRACE_S,
        "a job whose Ray's head has ended, on a machine that answers, ends": REFUSED_FOR_S,
        "a job whose Ray's head does not answer ends": MAX_HEADLESS_S,
        "an item on its way to a consumer that does not answer": ARRIVAL_S,
        "a rank that is stopped or stuck is told of": SILENT_S,
        "a rank that is stopped or stuck is dead": UNRESPONSIVE_AFTER_S,
        "a rank whose raylet, home or launcher is gone ends by force": LEAVE_GRACE_S,
        "a rank that is asked to end and is in a call is killed": STOP_GRACE_S,
        "a shutdown without a deadline says whom it waits for": TELL_S,
        "a rank that was killed is waited for": KILLED_WITHIN_S,
        "what a driver that has ended leaves of its own Ray is killed": LEFT_GRACE_S,
        "threads of a driver that was interrupted are left behind": THREADS_GRACE_S,
        "a rank whose connection is gone and of whose process Ray says nothing is dead": UNSAID_GRACE_S,
        "the failure of a call that nobody waits for is logged": UNREAD_GRACE_S,
        "a rank that is to come back is started, whether or not the one before is seen to end": ENDED_WITHIN_S,
        "a `breakpoint()` in a rank to which nobody comes goes on": WAIT_S,
        "a browser that does not ask, or does not take what was answered by the page of a job, is let go": PATIENCE_S,
        "`rlinf why`, `cluster.why()` and `group.stack()` take the answers that have come by then; "
        "where the driver does not answer, they end 1 s later": why.WITHIN_S,
        "`cluster.status()`, `rlinf top` and `rlinf metrics` say that the driver does not answer; "
        f"of other processes they take the answers that have come after {WITHIN_S:g} s": TIMEOUT_S,
        "`group.profile(seconds)` takes what has come by then after its `seconds`": SENDING_S,
        "a job that ends while it is traced waits so long for what its processes wrote": CLOSING_S,
        "a Ctrl-C is held up by the look for what was waited for": INTERRUPTED_S,
        "a Ray that does not say what a rank is to host, or does not take it": LEFT_WITHIN_S,
        "a Ray whose head does not answer is left without its word": SHUTDOWN_WITHIN_S,
        "a process that leaves a lost job beside its program is waited for at its end": UNDONE_WITHIN_S,
        "a Ray that does not let a job tidy up what it left for its ranks, or say which job servers live": TIDY_S,
        "a folder of logs or of a trace that somebody has locked": REMOVED_WITHIN_S,
    }


@pytest.mark.parametrize("no_deadline", [None, float("inf"), 1e12])
def test_connecting_without_a_deadline_waits_for_the_channel(no_deadline):
    """What is there is found at once; what is asked of the directory has no deadline that would end it."""
    with LocalRuntime() as runtime:
        asked = []
        lookup = runtime.directory.lookup
        runtime.directory.lookup = lambda name, timeout_s: asked.append(timeout_s) or lookup(name, timeout_s)
        Channel.create("rollouts")
        Channel.connect("rollouts", timeout_s=no_deadline)
        assert asked[0] >= 1e9
        Channel.connect("rollouts")
        assert asked[1] == 120


@pytest.mark.parametrize("no_deadline", [None, float("inf")])
def test_exchanges_without_a_deadline_have_none(no_deadline):
    assert checked_timeout(no_deadline) == FOREVER_S
