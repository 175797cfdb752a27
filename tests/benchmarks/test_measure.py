"""The arithmetic that the benchmarks share."""

import pytest

from measure import (
    Target,
    count_for,
    duration_text,
    in_turn,
    percentile,
    rate_text,
    ratio_text,
    size_text,
    speed_text,
)


def pace(seconds, log=None, start_up_s=0.0):
    """A side that takes `seconds` for each time, and more the first time."""
    runs = []

    def run(count):
        runs.append(count)
        if log is not None:
            log.append(count)
        return seconds * count + (start_up_s if len(runs) == 1 else 0.0)

    return run


def test_a_count_fills_the_budget():
    assert count_for(pace(0.001), 0.5) == pytest.approx(500, rel=0.01)


def test_a_slow_start_is_not_taken_for_the_pace():
    assert count_for(pace(0.001, start_up_s=5.0), 0.5) == pytest.approx(500, rel=0.01)


def test_what_takes_longer_than_the_budget_is_done_as_often_as_needed_at_least():
    assert count_for(pace(3.0), 0.5) == 1
    assert count_for(pace(3.0), 0.5, least=2) == 2


def test_a_count_stays_below_its_limit():
    assert count_for(pace(0.0), 0.5, most=1000) == 1000


def test_a_calibration_costs_a_small_multiple_of_the_budget():
    log = []
    count_for(pace(1e-6, log), 0.5)
    assert sum(log) * 1e-6 < 1.0
    assert len(log) < 12


def test_sides_run_in_turn():
    log = []
    first, second = pace(1.0), pace(2.0)
    in_turn([lambda n: log.append("a") or first(n), lambda n: log.append("b") or second(n)], [1, 1], 3)
    assert log == ["a", "b"] * 3


def test_a_figure_is_the_median_of_the_rounds_for_doing_it_once():
    rounds = iter([4.0, 40.0, 8.0])
    assert in_turn([lambda _: next(rounds)], [4], 3) == [2.0]


@pytest.mark.parametrize(("percent", "value"), [(1, 1), (50, 50), (99, 99), (99.5, 100), (100, 100)])
def test_a_percentile_is_a_value_that_was_measured(percent, value):
    assert percentile(range(100, 0, -1), percent) == value


def test_percentiles_of_one_value_are_that_value():
    assert percentile([7.0], 50) == percentile([7.0], 99) == 7.0


def test_sizes_have_the_largest_unit_that_fits():
    assert [size_text(n) for n in (16, 1024, 65536, 1 << 20, 256 << 20)] == [
        "16 B",
        "1 KiB",
        "64 KiB",
        "1 MiB",
        "256 MiB",
    ]


def test_durations_have_three_digits_and_a_unit():
    assert [duration_text(s) for s in (1.5e-6, 24.14e-6, 0.0033, 0.31, 2.5, 12.34)] == [
        "1.50 us",
        "24.1 us",
        "3.30 ms",
        "310 ms",
        "2.50 s",
        "12.3 s",
    ]


def test_rates_ratios_and_speeds_are_rounded_for_reading():
    assert rate_text(39123.4) == "39,123"
    assert rate_text(8.076) == "8.08"
    assert ratio_text(55.71) == "55.7 x"
    assert speed_text(1 << 20, 0.001) == "1.05"
    assert speed_text(16, 0.001) == ""


def test_a_target_is_met_from_its_own_side():
    assert Target("ratio", 10, 10.0, "x").met
    assert not Target("ratio", 10, 9.9, "x").met
    assert Target("latency", 4, 4.0, "pings", at_least=False).met
    assert not Target("latency", 4, 4.1, "pings", at_least=False).met


def test_a_target_that_was_not_measured_is_not_met():
    target = Target("ratio", 10, None, "x")
    assert (target.met, target.outcome) == (False, "not run")
