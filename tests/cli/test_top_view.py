"""What `rlinf top` shows of a job, whatever the terminal's size."""

import io
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from effort import tries
from rlinf_scheduler.cli.top_view import URGENCY, chosen, job_view
from rlinf_scheduler.observe.status import (
    CallStatus,
    ChannelStatus,
    GroupStatus,
    JobStatus,
    NodeStatus,
    RankStatus,
    WeightsStatus,
)
from status_cases import group_of, large_job, with_rank

SIZES = [(80, 24), (200, 60)]
# Of processor time: of a machine that does other things, too, more passes.
FRAME_S = 0.1


def shown(status, width, height, note=""):
    console = Console(width=width, height=height, file=io.StringIO())
    console.print(job_view(status, width, height, note))
    return console.file.getvalue()


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_large_job_fits_a_terminal_and_what_is_wrong_is_on_it(width, height):
    text = shown(large_job(), width, height)
    lines = text.splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert "1 unresponsive" in text
    assert any(line.strip().startswith("actor:37") and "unresponsive" in line for line in lines)
    assert "41 s actor:0: get_batch of weight 4096" in text
    assert "policy" in text
    assert "event 199" in text
    assert "more running" in text


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_frame_of_a_large_job_takes_less_than_a_tenth_of_a_second(width, height):
    status = large_job()
    took_s = []
    for _ in range(5):
        began = time.thread_time()
        shown(status, width, height)
        took_s.append(time.thread_time() - began)
    assert min(took_s) < FRAME_S


CALLS = (
    CallStatus("serve", 90.0, "driver", "get('questions')", 4.0),
    CallStatus("update", 30.0, "driver", "fetch_weights('policy')", 7.0),
    CallStatus("score", 2.0, "env:0"),
)


def test_each_call_that_runs_has_a_row_with_its_own_wait():
    rank = RankStatus("rollout:0", 0, state="running", method="score", method_since_s=2.0, calls=CALLS)
    status = JobStatus(0.0, "job", 1, groups=(GroupStatus("rollout", (rank,)),))
    lines = [line.split() for line in shown(status, 80, 24).splitlines()]
    assert lines[2][:5] == ["rollout:0", "running", "2", "s", "score()"]
    assert lines[3] == ["waiting", "4", "s", "get('questions'),", "in", "serve()"]
    assert lines[4] == ["waiting", "7", "s", "fetch_weights('policy'),", "in", "update()"]
    low = shown(status, 80, 5).splitlines()
    assert len(low) <= 5
    assert "2 s score(), 1 more call" in low[2] or "2 s score(), 2 more calls" in low[2]


def test_a_process_of_channels_says_how_much_goes_through_it():
    rank = RankStatus("Channels:0", 0, state="running", items_per_s=28_000.0, cpu_percent=30.0)
    status = JobStatus(0.0, "job", 1, groups=(GroupStatus("Channels", (rank,), "channels"),))
    assert "28.0k items/s" in shown(status, 80, 24)


@settings(max_examples=tries(15))
@given(
    sizes=st.lists(st.integers(1, 40), max_size=12),
    height=st.integers(5, 60),
    width=st.sampled_from([60, 80, 132]),
    seed=st.randoms(use_true_random=False),
)
def test_any_job_fits_any_terminal(sizes, height, width, seed):
    groups = []
    for index, size in enumerate(sizes):
        group = group_of(f"group{index}", size)
        groups.append(with_rank(group, seed.randrange(size), state=seed.choice(URGENCY), method="step"))
    text = shown(replace(large_job(), groups=tuple(groups)), width, height, note="the driver does not answer")
    lines = text.splitlines()
    assert len(lines) <= height
    assert "the driver does not answer" in lines[-1]


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12), num_lines=st.integers(1, 80))
def test_every_rank_is_shown_or_counted(sizes, num_lines):
    groups = [group_of(f"group{index}", size, state="idle") for index, size in enumerate(sizes)]
    groups[-1] = with_rank(groups[-1], 0, state="lost")
    choice = chosen(groups, num_lines)
    num_shown = sum(len(group.ranks) for group in choice.groups)
    assert num_shown + sum(choice.left_out.values()) == sum(sizes)
    assert sum(group.has_title for group in choice.groups) + num_shown <= num_lines
    assert len(choice.groups) + choice.num_groups_left_out == len(groups)


def test_with_room_for_all_nothing_is_left_out():
    status = replace(large_job(), groups=(group_of("env", 3, state="idle"),))
    text = shown(status, 100, 1000)
    assert all(f"env:{rank}" in text for rank in range(3))
    assert "more" not in text


def test_what_a_rank_waits_for_is_told_with_its_call_and_since_when():
    group = group_of(
        "actor", 1, state="waiting", wait="get('c')", wait_since_s=7.4, method="train", calls_queued=2
    )
    line = next(
        line
        for line in shown(JobStatus(0.0, "", 1, groups=(group,)), 120, 20).splitlines()
        if "actor:0" in line
    )
    assert "7 s get('c'), in train(), 2 queued" in line


def test_names_steer_no_terminal():
    channel = ChannelStatus("evil\x1b[2J", "Channels:0")
    assert "\x1b" not in shown(JobStatus(0.0, "x\x1b]0;", 1, channels=(channel,)), 80, 24)


@pytest.mark.parametrize("name", ["obs[train]", "a[/]b", "[bold]"])
def test_brackets_in_names_are_shown_and_are_no_markup(name):
    status = JobStatus(
        0.0,
        "",
        1,
        groups=(group_of(name, 2),),
        channels=(ChannelStatus(name, ""),),
        weights=(WeightsStatus(name, 1, ""),),
    )
    assert shown(status, 120, 30).count(name) == 5


def test_a_node_that_is_not_well_is_in_the_first_line():
    status = JobStatus(0.0, "train", 1, nodes=(NodeStatus(0, "a", ""), NodeStatus(1, "b", "", "lost")))
    assert "2 nodes  node 1 is lost" in shown(status, 100, 20).splitlines()[0]


def test_who_is_behind_has_a_version_not_a_number():
    weights = WeightsStatus("policy", 3, "actor:0", 1 << 20, {"rollout:0": 1, "rollout:1": 3}, 2)
    assert "rollout:0 has version 1; from actor:0" in shown(replace(large_job(), weights=(weights,)), 200, 60)
