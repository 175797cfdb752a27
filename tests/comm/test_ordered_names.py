"""Names in order: what begins alike, and what is near."""

from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.comm.names import Names

NAMES = st.text("ab:/1", min_size=1, max_size=5)


def made_of(names):
    made = Names()
    for name in names:
        made.add(name)
    return made


@given(st.sets(NAMES), st.sets(NAMES), st.text("ab", max_size=2), NAMES)
def test_what_begins_with_a_prefix_is_what_one_finds_among_all(there, gone, prefix, after):
    names = made_of(there)
    for name in gone & there:
        names.discard(name)
    left = there - gone
    expected = sorted(name for name in left if name.startswith(prefix))
    assert list(names.beginning_with(prefix)) == expected
    assert list(names.beginning_with(prefix, after)) == [
        name for name in expected if name > after or not after
    ]


@given(st.sets(NAMES), NAMES)
def test_the_nearest_are_of_the_same_kind_and_as_many_as_there_are(there, name):
    alike = {each for each in there if each.rpartition("/")[0] == name.rpartition("/")[0]}
    nearest = made_of(there).nearest(name, 5)
    assert len(set(nearest)) == len(nearest) == min(5, len(alike))
    assert alike.issuperset(nearest)
    if name in alike:
        assert name in nearest


def test_a_misspelt_name_is_found_among_very_many():
    names = made_of([*(f"rollout:{rank}" for rank in range(8000)), *(f"critic:{rank}" for rank in range(8))])
    misspelt = {
        "critc:0": "critic:0",
        "ritic:0": "critic:0",
        "crytic:3": "critic:3",
        "rolout:17": "rollout:17",
    }
    assert {
        name: names.nearest(name, 5) for name in misspelt if misspelt[name] not in names.nearest(name, 5)
    } == {}
