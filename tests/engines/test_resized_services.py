"""Rollout services and environments whose group grows and shrinks under load: nothing is lost, nothing comes twice."""

from functools import partial

import pytest

pytest.importorskip("torch")

from rollout_roles import Hurried
from test_rollout_service import DEADLINE_S, HELD, Service, counted, engines_of

from rlinf_scheduler.events import RankDrained
from tiny_engine import TinyEngine
from waits import wait_until

# To leave: however long the machine stands still.
LONG_S = 10 * DEADLINE_S


def drained_in(job, group):
    told = []
    job.session.bus.subscribe(lambda event: isinstance(event, RankDrained) and told.append(event))
    return told


def test_a_service_that_grows_and_shrinks_under_load_answers_each_request_once(job):
    service = Service(job, 2, HELD, max_requests=8)
    drained = drained_in(job, service.group)
    more = service.group.grow(2)
    asked = [service.ask(start, 20) for start in range(150)]
    serving = service.group.execute_on(*more).serve(service.channel)
    wait_until(lambda: min(service.group.tokens().wait(DEADLINE_S)) > 0)  # all have some
    service.let_go()
    assert service.group.shrink(ranks=[0, 2], drain_s=LONG_S) == (0, 2)
    asked += [service.ask(start, 20) for start in range(150, 200)]
    answers = [each.wait(DEADLINE_S) for each in asked]
    for start, answer in enumerate(answers):
        assert counted(answer, start)
        assert (len(answer.generation.token_ids), answer.attempt) == (20, 1)
    assert {"rollout:1", "rollout:3"} <= set(engines_of(answers))
    service.channel.close()
    served = [each for part in (service.serving, serving) for each in part.wait(DEADLINE_S)]
    assert sum(each.num_answered for each in served) == 200
    assert sum(each.num_handed_back for each in served) == 0
    wait_until(lambda: len(drained) == 2)
    assert [(each.rank, each.forced) for each in drained] == [(0, False), (2, False)]


def begun(service, *starts):
    """Requests that rank 0 has begun, and a second rank that serves too."""
    (late,) = service.group.grow(1)
    service.group.execute_on(late).let_go().wait(DEADLINE_S)
    asked = [service.ask(start, 300) for start in starts]
    wait_until(lambda: service.group[0].tokens().wait(DEADLINE_S)[0] > len(starts))
    return asked, service.group.execute_on(late).serve(service.channel)


def test_what_does_not_finish_in_half_of_the_time_goes_on_elsewhere_with_what_it_has(job):
    service = Service(job, 1, partial(TinyEngine, step=1, hold_at=9), kind=Hurried)
    asked, serving = begun(service, 0, 5000)
    assert service.group.shrink(ranks=[0], drain_s=LONG_S) == (0,)
    answers = [each.wait(DEADLINE_S) for each in asked]
    assert [each.answered_by for each in answers] == ["rollout:1"] * 2
    assert all(counted(answer, start) for answer, start in zip(answers, (0, 5000), strict=True))
    assert [each.request.remaining < 300 for each in asked] == [True, True]
    service.channel.close()
    assert service.serving.wait(DEADLINE_S)[0].num_handed_back == 2
    assert serving.wait(DEADLINE_S)[0].num_handed_back == 0


class Stuck(TinyEngine):
    """Does not hand back what it has."""

    async def abort(self):
        pass


def test_what_a_rank_has_that_is_ended_by_force_is_answered_by_another(job):
    service = Service(job, 1, partial(Stuck, step=1, hold_at=9))
    drained = drained_in(job, service.group)
    asked, serving = begun(service, 0, 5000)
    assert service.group.shrink(ranks=[0], drain_s=0.5) == (0,)
    answers = [each.wait(DEADLINE_S) for each in asked]
    assert all(counted(answer, start) for answer, start in zip(answers, (0, 5000), strict=True))
    assert [(each.answered_by, each.attempt) for each in answers] == [("rollout:1", 2)] * 2
    wait_until(lambda: drained)
    assert [(each.rank, each.forced) for each in drained] == [(0, True)]
    service.channel.close()
    serving.wait(DEADLINE_S)
