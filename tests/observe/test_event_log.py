"""The last events of a job, in words."""

import dataclasses
import typing

import pytest

from rlinf_scheduler import events
from rlinf_scheduler.observe.status import MAX_EVENTS
from rlinf_scheduler.observe.summing_up import UNTOLD, EventLog, told_as
from rlinf_scheduler.session import EventBus

EVERY = typing.get_args(events.Event)


def example(kind):
    """An event of a class, with values of its fields' types."""
    values = {"int": 3, "str": "some words", "float": 2.5, "bool": True}
    return kind(*(values.get(field.type, ("x",)) for field in dataclasses.fields(kind)))


@pytest.mark.parametrize("kind", [kind for kind in EVERY if kind not in UNTOLD])
def test_every_event_is_told_in_a_line_of_words(kind):
    level, text = told_as(example(kind))
    assert level in ("info", "warning", "error")
    assert text
    assert kind.__name__ not in text
    assert "\n" not in text


def test_lines_of_workers_are_not_events_of_the_job_and_old_events_go():
    log = EventLog()
    for number in range(MAX_EVENTS + 5):
        log.note(events.GroupLaunched("env", number, 1.0), float(number))
    log.note(events.WorkerStarted("env", 0, 0, 77, 1.0), 1e6)
    assert len(log.records()) == MAX_EVENTS
    assert log.records()[-1].at_s == MAX_EVENTS + 4
    assert log.counts == {"GroupLaunched": MAX_EVENTS + 5, "WorkerStarted": 1}


def test_a_node_is_what_was_told_of_it_last():
    log = EventLog()
    log.note(events.NodeUnresponsive(1, "b", "10.0.0.2", "its raylet does not answer", 4.0), 1.0)
    assert log.nodes == {1: ("unresponsive", "its raylet does not answer")}
    log.note(events.NodeDraining(1, "b", "10.0.0.2", "it is to be given back", 30.0), 1.5)
    assert log.nodes == {1: ("draining", "it is to be given back")}
    log.note(events.NodeLost(1, "b", "10.0.0.2", "its raylet ended"), 2.0)
    assert log.nodes == {1: ("lost", "its raylet ended")}
    log.note(events.NodeJoined(1, "c", "10.0.0.3", 8), 3.0)
    assert log.nodes == {}


def test_what_was_lost_long_ago_is_forgotten():
    log = EventLog()
    log.note(events.WorkerLost("env", 0, "killed"), 1.0)
    log.note(events.WorkerLost("env", 1, "killed"), 5.0)
    log.forget_lost(before_s=2.0)
    assert log.lost.keys() == {"env:1"}


def test_a_tap_hears_what_is_emitted_at_once_and_without_a_thread():
    bus, heard = EventBus(), []
    bus.tap(heard.append)
    bus.emit(event := events.GroupLaunched("env", 1, 1.0))
    assert heard == [event]


def test_a_channel_whose_process_is_gone_is_no_lost_rank():
    log = EventLog()
    log.note(events.ChannelOpened("trajectories", 0, 0, "Channels:0", 77), 1.0)
    log.note(events.WorkerLost("trajectories", 0, "killed by signal 9"), 2.0)
    assert log.lost == {}
    assert log.records()[-1].text == "trajectories:0 was lost: killed by signal 9"
