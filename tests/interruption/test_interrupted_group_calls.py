"""A group call that a signal interrupts anywhere runs on each rank once at most, and the next one works."""

import pytest

from interruption_roles import item_of
from interruption_workers import Notes
from interruptions import NUM_ROUNDS, SEED, Kills
from rlinf.scheduler import NodePlacementStrategy

pytestmark = [
    pytest.mark.ray,
    pytest.mark.interrupted,
    pytest.mark.timeout(120 + NUM_ROUNDS),
    pytest.mark.system,
]


def test_interrupted_group_calls_run_once_at_most_and_in_order(driver):
    print(f"seed {SEED}")  # noqa: T201
    group = Notes.create_group().launch(driver, NodePlacementStrategy([0, 1]), name="notes")
    try:
        got = []
        with Kills(SEED) as kills:
            for number in range(NUM_ROUNDS):
                kills.attempt(
                    lambda number=number: got.append((number, group.note(number, item_of(number)).wait(60)))
                )
        assert kills.num_signals > NUM_ROUNDS // 10
        assert group.note(NUM_ROUNDS).wait(60) == [NUM_ROUNDS] * 2
        assert got == [(number, [number] * 2) for number, _ in got]
        for noted in group.noted().wait(60):
            assert noted == sorted(set(noted)), "in order, and none twice"
            assert {number for number, _ in got} <= set(noted)
    finally:
        group.terminate()
