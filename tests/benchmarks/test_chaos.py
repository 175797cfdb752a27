"""A short chaos: every item is accounted for while processes are killed, stopped and interrupted."""

from chaos import Chaos, report

SECONDS = 4.0


def test_every_item_of_a_durable_channel_is_accounted_for_while_its_own_process_is_killed_too(tmp_path):
    outcome = Chaos(tmp_path, seed=1, durable=True).run(SECONDS)
    assert outcome.good, report(outcome, SECONDS)
    assert outcome.events["kill the channel"] > 0


def test_every_item_is_accounted_for_while_processes_are_killed_and_stopped(tmp_path):
    outcome = Chaos(tmp_path, seed=1).run(SECONDS)
    assert outcome.good, report(outcome, SECONDS)
    assert sum(outcome.events.values()) > 3
