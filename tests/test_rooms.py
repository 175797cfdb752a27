"""A module that is missing is told as a room that was left out only where it is one."""

import pytest

from rlinf_scheduler import rooms


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("rlinf_scheduler.web", "web is not installed"),
        ("rlinf_scheduler.web.server", "web is not installed"),
        ("web", "no module"),  # of a user's
        ("rlinf_scheduler.webb", "no module"),
        (None, "no module"),
    ],
)
def test_what_is_missing_is_told_as_a_room_if_it_is_one(missing, told, monkeypatch):
    monkeypatch.setattr(rooms, "has_room", lambda _room: False)
    assert str(rooms.not_installed(ModuleNotFoundError("no module", name=missing))).startswith(told)
