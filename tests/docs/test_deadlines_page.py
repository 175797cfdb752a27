"""The table of deadlines has every option of a public call that is a time to wait, with its default."""

import inspect
import re
from pathlib import Path

import pytest
from test_api_reference import documented

from rlinf.scheduler import Channel, errors
from rlinf.scheduler.channel.operation import ANSWER_S
from rlinf.scheduler.channel.starting import START_TIMEOUT_S
from rlinf.scheduler.comm.transfer import FOREVER_S, checked_timeout
from rlinf.scheduler.comm.transport.session import GRACE_S
from rlinf.scheduler.worker.supervision import STOP_GRACE_S, UNREAD_GRACE_S
from rlinf.testing import LocalRuntime

PAGE = (Path(__file__).parents[2] / "docs/reference/deadlines.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([\w.]+)` \| `(\w+_s)` \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
FIXED = dict(re.findall(r"^\| (.+?) \| (\d+) s \|$", PAGE, re.MULTILINE))


def written(seconds):
    return "none" if seconds is None else f"{seconds:g} s"


def options():
    """(call, option, default) of everything in the reference that takes a time to wait."""
    for thing in documented():
        if inspect.isclass(thing) and not inspect.isabstract(thing):
            for name in vars(thing):
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


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_error_at_a_deadline_is_a_timeout(row):
    for name in re.findall(r"`(\w+)`", row[3]):
        assert issubclass(getattr(errors, name), TimeoutError | LookupError)


def test_fixed_waits_are_those_of_the_code():
    assert {what.split(":")[0]: float(seconds) for what, seconds in FIXED.items()} == {
        "a channel's process that does not answer": ANSWER_S,
        "a channel's process that does not start": START_TIMEOUT_S,
        "a peer whose connection is cut and cannot be made anew is dead": GRACE_S,
        "a rank that is asked to end and is in a call is killed": STOP_GRACE_S,
        "the failure of a call that nobody waits for is logged": UNREAD_GRACE_S,
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
