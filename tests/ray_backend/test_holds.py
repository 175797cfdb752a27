"""What a hold says of itself in the name that Ray keeps of it."""

import pytest

from rlinf_scheduler.ray_backend.holds import DeviceHold
from rlinf_scheduler.wording import device_list

HOLD = DeviceHold(
    "0100",
    "ef01",
    "abcd",
    ("0", "1", "GPU-8a7f"),
    1_790_000_000.0,
    "python a|b.py (process 3 on a1, user eve)",
)


def test_a_hold_is_read_from_its_name():
    assert DeviceHold.from_name(HOLD.to_name()) == HOLD


def test_no_two_names_are_the_same():
    assert HOLD.to_name() != HOLD.to_name()


@pytest.mark.parametrize(
    "name",
    ["", "a user's own", "rlinf-devices", "rlinf-devices|a|b|c|d|e|f|g", HOLD.to_name()[1:]],
    ids=["empty", "a user's", "short", "no hold in it", "cut"],  # a hold's name is made anew in every process
)
def test_other_placement_groups_are_no_holds(name):
    assert DeviceHold.from_name(name) is None


@pytest.mark.parametrize(
    ("names", "text"), [(["0", "2", "1", "10"], "0-2,10"), (["GPU-a", "1"], "GPU-a,1"), ([], "")]
)
def test_devices_are_listed_as_people_write_them(names, text):
    assert device_list(names) == text
