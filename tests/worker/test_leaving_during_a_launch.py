"""A process that leaves its job ends the launches that go on in it."""

from rlinf_scheduler.worker.supervision import LaunchedGroups


def test_a_launch_that_goes_on_is_ended_when_its_process_leaves(session):
    ended = []
    launched = session.service(LaunchedGroups)
    with launched.launching(lambda: ended.append("over")):
        pass
    with launched.launching(lambda: ended.append("goes on")):
        session.close()
        assert ended == ["goes on"]


def test_a_launch_that_begins_when_its_process_has_left_is_ended_at_once(session):
    launched = session.service(LaunchedGroups)
    session.close()
    ended = []
    with launched.launching(lambda: ended.append("late")):
        assert ended == ["late"]
