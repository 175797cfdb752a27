"""Sessions without Ray; a machine whose user has a private directory, and whose `ray start` is a small program."""

import json
import sys
from pathlib import Path

import pytest

from comm_fixtures import new_messenger, secret, session
from rlinf_scheduler.ray_backend import folders, this_node

__all__ = ["new_messenger", "secret", "session"]

FAKE_RAY = Path(__file__).with_name("fake_ray.py")


@pytest.fixture
def private(tmp_path, monkeypatch):
    """The directory of mode 0700 in which records lie."""
    path = tmp_path / "private"
    path.mkdir(mode=0o700)
    monkeypatch.setattr(folders, "private_directory", lambda longest=None: path)
    return path


@pytest.fixture
def machine(private, tmp_path, monkeypatch):
    """The variables to start a node with; `.said()` is what `ray start` was given."""

    class Machine(dict):
        def said(self):
            return json.loads(Path(self["FAKE_RAY_SAYS"]).read_text())

    monkeypatch.setattr(this_node, "_RAY", (sys.executable, str(FAKE_RAY)))
    return Machine(
        HOME=str(tmp_path / "home"),
        FAKE_RAY_SAYS=str(tmp_path / "said"),
        FAKE_RAY_STARTS="ends",
        FAKE_RAY_ENDS="0",
    )
