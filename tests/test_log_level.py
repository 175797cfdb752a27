"""From which level on workers' lines are sent to the driver."""

import logging

import pytest

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.host.log_lines import level_to_forward
from rlinf_scheduler.log_level import level_of


@pytest.mark.parametrize(("named", "sent"), [("", "INFO"), ("debug", "DEBUG"), ("WARNING", "WARNING")])
def test_workers_send_what_the_variable_names_and_else_info(monkeypatch, named, sent):
    logger = logging.getLogger("rlinf.worker")
    monkeypatch.setattr(logger, "level", logging.INFO)
    monkeypatch.setenv("RLINF_LOG_LEVEL", named)
    assert logging.getLevelName(level_to_forward()) == sent


def test_a_level_that_there_is_not_is_told_before_anything_starts(monkeypatch):
    monkeypatch.setenv("RLINF_LOG_LEVEL", "loud")
    with pytest.raises(ConfigError, match="RLINF_LOG_LEVEL='loud'"):
        level_to_forward()
    with pytest.raises(ConfigError, match="log_level=-1"):
        level_of(-1, "log_level")
