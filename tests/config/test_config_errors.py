"""Errors of configs as values: alone and several together, in other processes, with their place filled in."""

import pickle

import pytest

from rlinf_scheduler.errors import (
    ConfigError,
    ConfigErrors,
    PlacementError,
    PlacementErrors,
    UnknownKey,
    raise_config_errors,
)

FIRST = ConfigError("first", path="a", hint="write it")
SECOND = PlacementError("second", component="actor", text="0-", span=(0, 2))
THIRD = UnknownKey("third", file="f:3")


def raised(errors):
    with pytest.raises(ConfigError) as caught:
        raise_config_errors(errors)
    return caught.value


def test_single_mistake_is_raised_as_it_is_and_none_not_at_all():
    raise_config_errors([])
    assert raised([FIRST]) is FIRST


def test_several_are_a_placement_error_if_one_of_them_is():
    assert type(raised([FIRST, THIRD])) is ConfigErrors
    assert type(raised([FIRST, SECOND])) is PlacementErrors
    assert isinstance(raised([FIRST, SECOND]), AssertionError)


def test_mistakes_within_mistakes_are_counted_singly():
    assert ConfigErrors([FIRST, PlacementErrors([SECOND, THIRD])]).each() == (FIRST, SECOND, THIRD)


@pytest.mark.parametrize("error", [FIRST, SECOND, THIRD, PlacementErrors([FIRST, SECOND], "f")], ids=repr)
def test_error_arrives_in_another_process_as_it_was(error):
    arrived = pickle.loads(pickle.dumps(error))
    assert (type(arrived), str(arrived)) == (type(error), str(error))


def test_place_is_filled_in_where_nothing_is_said_of_it():
    every = PlacementErrors([FIRST, SECOND, THIRD]).at(path="p", component="c", file="g")
    assert [(e.path, e.component, e.file) for e in every.each()] == [
        ("a", "c", "g"),
        ("p", "actor", "g"),
        ("p", "c", "f:3"),
    ]


def test_several_mistakes_keep_the_file_that_they_are_in():
    every = PlacementErrors([FIRST, SECOND], "conf.yaml").at(path="p")
    assert (type(every), every.file) == (PlacementErrors, "conf.yaml")
    assert str(every).startswith("conf.yaml: 2 mistakes\n- a: first")


def test_caret_stands_under_its_spot():
    assert str(FIRST.pointing("num_node: 2", (0, 8))).splitlines() == [
        "a: first",
        "  num_node: 2",
        "  ^^^^^^^^",
        "  hint: write it",
    ]
    assert [e.span for e in ConfigErrors([FIRST, THIRD]).pointing("x", (0, 1)).each()] == [(0, 1), (0, 1)]
