"""What part of a rank's time its notes take, given how many there are."""

import pytest

from note_costs import NoteCosts, share_of_notes

COSTS = NoteCosts(channel_wait=1e-6, wait=10e-6, phase=100e-6, call=1e-3, span=0.0, written=0.0)


def group(num_ranks, *methods):
    return {"num_ranks": num_ranks, "lived_s": 2.0, "methods": list(methods)}


def method(calls, phases=(), waits=()):
    return {
        "spent": {"count": calls},
        "phases": [{"spent": {"count": count}} for count in phases],
        "waits": [{"kind": kind, "spent": {"count": count}} for kind, count in waits],
    }


def test_the_share_is_of_a_rank_of_the_group_that_notes_most():
    idle, busy = method(1), method(2, phases=(30, 10), waits=[("channel", 1000), ("result", 100)])
    noted_s = 2 * 1e-3 + 40 * 100e-6 + 1000 * 1e-6 + 100 * 10e-6
    assert share_of_notes({"groups": [group(1, idle), group(2, busy)]}, COSTS) == pytest.approx(
        noted_s / 2 / 2.0
    )
