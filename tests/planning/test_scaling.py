"""When a group grows and shrinks: what each figure leads to, and what holds of every course of figures."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.planning.scaling import ScalingOptions, ScalingPolicy, ScalingSample


def rules_of(least, most, **options):
    return ScalingPolicy(least, most, ScalingOptions(**options))


def decided(policy, samples, size):
    """What is decided of each sample, where what is decided is done."""
    decisions = []
    for sample in samples:
        decisions.append(policy.decide(sample, size))
        size = decisions[-1].after
    return decisions


def steady(waited_for, spare, size, **rules):
    """The decision after a minute of which every ten seconds were alike."""
    samples = [ScalingSample(10.0 * number, waited_for, spare) for number in range(7)]
    rules = {"least": 2, "most": 8, "for_s": 60.0, "cooldown_s": 0.0, **rules}
    *before, last = decided(rules_of(**rules), samples, size)
    assert {each.action for each in before} == {"stay"}, "it was not looked at for long enough"
    return str(last)


@pytest.mark.parametrize(
    ("waited_for", "spare", "size", "rules", "decision"),
    [
        (0.5, 0.1, 2, {}, "grow from 2 to 3: it was waited for 50% of the last 60 s, more than 20%"),
        (0.5, 0.1, 2, {"step": 4}, "grow from 2 to 6: it was waited for 50% of the last 60 s, more than 20%"),
        (0.5, 0.1, 7, {"step": 4}, "grow from 7 to 8: it was waited for 50% of the last 60 s, more than 20%"),
        (
            0.5,
            0.1,
            8,
            {},
            "stay at 8: it was waited for 50% of the last 60 s, more than 20%; it has 8, the most",
        ),
        (0.2004, 0.1, 2, {}, "grow from 2 to 3: it was waited for 20.04% of the last 60 s, more than 20%"),
        (
            0.0497,
            0.0,
            2,
            {},
            "stay at 2: it was waited for 4.97% of the last 60 s, less than 5%; it has 2, the least",
        ),
        (
            0.054,
            0.9,
            4,
            {"shrink_below": 0.055},
            "shrink from 4 to 3: it was waited for 5% of the last 60 s, less than 5.5%, and 3 ranks would be at work "
            "13% of the time",
        ),
        (0.1, 0.9, 4, {}, "stay at 4: it was waited for 10% of the last 60 s, between 5% and 20%"),
        (
            0.0,
            0.5,
            4,
            {},
            "shrink from 4 to 3: it was waited for 0% of the last 60 s, less than 5%, and 3 ranks would be at work 67% "
            "of the time",
        ),
        (
            0.0,
            0.2,
            4,
            {},
            "stay at 4: it was waited for 0% of the last 60 s, less than 5%, but 3 ranks would be at work 100% of the "
            "time",
        ),
        (
            0.0,
            1.0,
            2,
            {},
            "stay at 2: it was waited for 0% of the last 60 s, less than 5%; it has 2, the least",
        ),
        (7.0, 0.0, 2, {}, "grow from 2 to 3: it was waited for 100% of the last 60 s, more than 20%"),
    ],
)
def test_what_a_group_did_for_a_minute_decides(waited_for, spare, size, rules, decision):
    assert steady(waited_for, spare, size, **rules) == decision


def test_one_that_was_lost_is_replaced_and_one_too_many_goes_whatever_the_figures_say():
    [fewer] = decided(rules_of(2, 4, cooldown_s=0.0), [ScalingSample(0.0, 0.0, 1.0)], 1)
    [more] = decided(rules_of(2, 4, cooldown_s=0.0), [ScalingSample(0.0, 1.0, 0.0)], 6)
    assert str(fewer) == "grow from 1 to 2: it has fewer than 2, the least"
    assert str(more) == "shrink from 6 to 5: it has more than 4, the most"


def test_after_a_change_nothing_is_changed_for_a_while_and_what_was_before_does_not_count():
    rules = rules_of(1, 8, for_s=20.0, cooldown_s=30.0)
    samples = [ScalingSample(10.0 * number, 1.0, 0.0) for number in range(9)]
    decisions = decided(rules, samples, 1)
    assert [each.action for each in decisions] == ["stay"] * 2 + ["grow"] + ["stay"] * 2 + ["grow"] + [
        "stay"
    ] * 2 + ["grow"]
    assert decisions[3].reason == "it was changed 10 s ago, and stays for 30 s"


def test_a_peak_that_is_over_is_forgotten():
    rules = rules_of(1, 8, for_s=20.0, cooldown_s=0.0)
    shares = (0.0, 0.0, 0.3, 0.1, 0.1)
    samples = [ScalingSample(10.0 * number, share, 0.0) for number, share in enumerate(shares)]
    last = decided(rules, samples, 2)[-1]
    assert str(last) == "stay at 2: it was waited for 10% of the last 20 s, between 5% and 20%"


@given(
    st.lists(st.tuples(st.floats(0.1, 30), st.floats(0, 1.5), st.floats(0, 1)), max_size=40),
    st.integers(1, 10),
    st.integers(1, 4),
    st.integers(0, 6),
    st.integers(1, 3),
    st.floats(0, 40),
    st.floats(0, 40),
)
def test_a_group_stays_within_its_limits_and_changes_seldom_enough(
    course, size, least, span, step, for_s, cooldown_s
):
    rules = rules_of(least, least + span, step=step, for_s=for_s, cooldown_s=cooldown_s)
    now, samples = 0.0, []
    for took_s, waited_for, spare in course:
        now += took_s
        samples.append(ScalingSample(now, waited_for, spare))
    decisions = decided(rules, samples, size)
    changes = [each for each in decisions if each.action != "stay"]
    for each in changes:
        assert 1 <= abs(each.after - each.before) <= step
        if rules.least <= each.before <= rules.most:
            assert rules.least <= each.after <= rules.most
        else:  # it comes nearer
            assert abs(each.after - each.before) <= max(rules.least - each.before, each.before - rules.most)
    for before, after in pairwise(changes):
        assert after.at - before.at >= cooldown_s
    # Between two that go opposite ways the figures have changed for as long as is looked at.
    for before, after in pairwise(changes):
        if before.action != after.action and rules.least <= after.before <= rules.most:
            seen = [s for s in samples if before.at < s.at <= after.at]
            assert after.at - before.at >= for_s
            assert any((s.waited_for > rules.options.grow_above) == (after.action == "grow") for s in seen)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 8))
def test_steady_figures_never_have_a_group_grow_and_shrink_in_turns(waited_for, spare, size):
    rules = rules_of(1, 8, for_s=5.0, cooldown_s=0.0)
    samples = [ScalingSample(float(number), waited_for, spare) for number in range(200)]
    actions = {each.action for each in decided(rules, samples, size)}
    assert not {"grow", "shrink"} <= actions


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ({"least": 0}, "min=0: it is a whole number from 1"),
        ({"most": 2.5}, "max=2.5: it is a whole number from 1"),
        ({"least": 4, "most": 2}, "max=2 is less than min=4"),
        ({"step": True}, "step=True: it is a whole number from 1"),
        ({"grow_above": 20}, "grow_above=20: it is a share, from 0 to 1"),
        ({"for_s": float("nan")}, "for_s=nan: it is a number of seconds"),
        ({"cooldown_s": "60"}, "cooldown_s='60': it is a number of seconds"),
        ({"shrink_below": 0.2}, "shrink_below=0.2 is not below grow_above=0.2"),
    ],
)
def test_rules_that_contradict_each_other_are_told(rules, problem):
    with pytest.raises(ConfigError) as caught:
        rules_of(**{"least": 2, "most": 8, **rules})
    assert str(caught.value).startswith(problem)
