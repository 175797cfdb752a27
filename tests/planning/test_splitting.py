"""The split of devices that gives the shortest step: against every split there is, and for odd figures."""

import itertools
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import tries
from rlinf_scheduler.errors import PlacementError
from rlinf_scheduler.planning import splitting
from rlinf_scheduler.planning.splitting import (
    Measured,
    Workload,
    best_splits,
    curve,
    workload_of,
)


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


workload_lists = st.lists(
    st.builds(
        Workload,
        st.just(""),
        st.sampled_from([0.0, 1.0, 5.0, 10.0, 50.0]),
        st.sampled_from([1, 1, 2, 3]),
        st.sampled_from([0.0, 0.0, 1.0]),
        st.sampled_from([30.0, 50.0]),
    ),
    min_size=1,
    max_size=3,
).map(
    lambda found: [Workload(f"c{i}", d.work_s, d.width, d.fixed_s, d.memory_gb) for i, d in enumerate(found)]
)


def groupings(names):
    if not names:
        yield []
        return
    for size in range(len(names)):
        for others in itertools.combinations(names[1:], size):
            rest = [name for name in names[1:] if name not in others]
            for further in groupings(rest):
                yield [(names[0], *others), *further]


def shortest(workloads, num_devices, phases, memory_gb):
    """The step of the best of all splits."""
    best = math.inf
    for groups in groupings(workloads):
        if any(sum(workload.memory_gb for workload in group) > memory_gb for group in groups):
            continue
        units = [math.lcm(*(workload.width for workload in group)) for group in groups]
        for sizes in itertools.product(*(range(unit, num_devices + 1, unit) for unit in units)):
            if sum(sizes) <= num_devices:
                seconds = [
                    sum(workload.seconds(size) for workload in group)
                    for group, size in zip(groups, sizes, strict=True)
                ]
                best = min(best, sum(seconds) if phases == "in turn" else max(seconds))
    return best


@given(
    workloads=workload_lists,
    num_devices=st.integers(1, 12),
    phases=st.sampled_from(["in turn", "side by side"]),
    memory_gb=st.sampled_from([60.0, 100.0, math.inf]),
)
@settings(max_examples=tries(300), deadline=None)
def test_no_other_split_gives_a_shorter_step(workloads, num_devices, phases, memory_gb):
    best = shortest(workloads, num_devices, phases, memory_gb)
    if best == math.inf:
        with pytest.raises(PlacementError, match="no split of"):
            best_splits(workloads, num_devices, phases, device_memory_gb=memory_gb)
        return
    found = best_splits(workloads, num_devices, phases, device_memory_gb=memory_gb)
    split = found[0]
    assert sorted(split.devices) == sorted(workload.name for workload in workloads)
    assert sum(pool.num_devices for pool in split.pools) <= num_devices
    for pool in split.pools:
        assert all(pool.num_devices % workload.width == 0 for workload in pool.workloads)
        assert sum(workload.memory_gb for workload in pool.workloads) <= memory_gb
    assert [each.step_s for each in found] == sorted(each.step_s for each in found)
    assert split.step_s == pytest.approx(best)


def test_what_was_measured_twice_tells_what_does_not_divide():
    workload = workload_of("actor", [Measured(1, 9.0), Measured(2, 5.0), Measured(4, 3.0)], width=1)
    assert (workload.work_s, workload.fixed_s) == (pytest.approx(8.0), pytest.approx(1.0))
    assert workload_of("actor", [Measured(4, 3.0)]) == Workload("actor", 12.0)
    slower = workload_of("actor", [Measured(2, 3.0), Measured(4, 5.0)])
    assert (slower.work_s, slower.fixed_s) == (0.0, 4.0)
    faster = workload_of("actor", [Measured(1, 9.0), Measured(4, 1.0)])
    assert faster.fixed_s == pytest.approx(0.0, abs=1e-6)


def test_a_curve_has_each_split_of_two():
    workloads = [Workload("rollout", 24.0, 2), Workload("actor", 8.0)]
    points = dict(curve(workloads, 8, "side by side", "rollout"))
    assert points == {2: 12.0, 4: 6.0, 6: 4.0}
    with pytest.raises(PlacementError):
        list(curve(workloads, 8, "side by side", "reward"))


@given(workloads=workload_lists, num_devices=st.integers(20, 40))
@settings(max_examples=tries(50), deadline=None)
def test_many_devices_are_divided_almost_as_well_as_few(workloads, num_devices, monkeypatch_module):
    apart = {"device_memory_gb": 50.0}
    best = best_splits(workloads, num_devices, "in turn", **apart)[0].step_s
    monkeypatch_module.setattr(splitting, "MOST_TRIED", 0)
    try:
        assert best - 1e-9 <= best_splits(workloads, num_devices, "in turn", **apart)[0].step_s <= 1.15 * best
    finally:
        monkeypatch_module.undo()


def test_a_large_fleet_is_split_in_a_moment():
    workloads = [Workload(f"c{i}", 10.0**i, 8, memory_gb=40) for i in range(5)]
    begun = time.process_time()
    best_splits(workloads, 65_536, "side by side", device_memory_gb=90)
    best_splits(workloads, 65_536, "in turn", device_memory_gb=90)
    assert time.process_time() - begun < 2.0


@pytest.mark.parametrize("number", [0, 8])
def test_no_components_or_too_many_are_refused(number):
    with pytest.raises(PlacementError, match="from 1 to 7"):
        best_splits([Workload(f"c{i}", 1.0) for i in range(number)], 64, "in turn")
