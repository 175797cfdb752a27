"""A short chaos: every item is accounted for while processes are killed, stopped and interrupted."""

import pytest

from chaos import Chaos, report
from effort import EFFORT

pytestmark = pytest.mark.system

SECONDS = 1.5 * EFFORT


def test_every_item_of_a_durable_channel_is_accounted_for_while_its_own_process_is_killed_too(tmp_path):
    outcome = Chaos(tmp_path, seed=1, durable=True).run(SECONDS, including="kill the channel")
    assert outcome.good, report(outcome, SECONDS)


def test_every_item_is_accounted_for_while_processes_are_killed_and_stopped(tmp_path):
    outcome = Chaos(tmp_path, seed=1).run(SECONDS, including="kill")
    assert outcome.good, report(outcome, SECONDS)
