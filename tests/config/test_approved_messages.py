"""What a user is told about a config that is wrong: every message was read by a person and is kept as a file.

`APPROVE=1 pytest tests/config/test_approved_messages.py` writes the messages anew; read what changed.
"""

import os
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from effort import case
from rlinf.scheduler import ComponentPlacement, Topology
from rlinf_scheduler.errors import ConfigError

FOLDER = Path(__file__).parent / "approved"
CONFIGS = sorted(FOLDER.glob("*.yaml"))


def message_about(file):
    """What a config is told; its first lines say on what it is planned, and whether our own loader reads it."""
    text = file.read_text()
    on = re.search(r"^# on (.+)$", text, re.MULTILINE)
    config = OmegaConf.load(file) if "# through OmegaConf" in text else file.name
    with pytest.raises(ConfigError) as caught:
        ComponentPlacement(config, Topology.parse(on[1] if on else "2x8"))
    return f"{caught.value}\n"


def test_user_is_told_what_was_approved(monkeypatch):
    monkeypatch.chdir(FOLDER)
    for file in CONFIGS:
        with case(file.stem):
            approved = file.with_suffix(".txt")
            message = message_about(file)
            if os.environ.get("APPROVE"):
                approved.write_text(message)
            assert message == approved.read_text()


def test_every_message_has_its_config():
    assert {file.stem for file in FOLDER.glob("*.txt")} == {file.stem for file in CONFIGS}
    assert len(CONFIGS) >= 100
