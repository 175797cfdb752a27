"""A group of engines as a service: real processes, killed, drained and updated while they generate."""

import asyncio
import os
import signal
from collections import Counter
from functools import partial

import pytest
from rollout_roles import AbortsLate, Actor, ClosesOnce, DiesAmongMany, FailsAt, Rank, StartsLate

pytest.importorskip("torch")

from rlinf.scheduler import Channel, PackedPlacementStrategy
from rlinf_scheduler.engines import (
    RolloutClient,
    RolloutOptions,
    Sampling,
)
from rlinf_scheduler.errors import ChannelUnanswerable, EngineError, ResultTimeout, WorkerDied, WorkerError
from rlinf_scheduler.events import WorkerLogged
from tiny_engine import KILLER, VOCABULARY, TinyEngine
from waits import wait_until

DEADLINE_S = 60.0
COUNTS = partial(TinyEngine, step=1)  # without weights of somebody else's it counts by one
SLOW = partial(TinyEngine, token_s=0.002, step=1)
# Nothing ends before the test lets it, however late the test comes to look at what runs.
HELD = partial(SLOW, hold_at=5)


class Service:
    """A group that serves, a channel, and who asks."""

    def __init__(
        self, job, num_ranks=2, engine=COUNTS, on_failure="ignore", max_attempts=None, kind=Rank, **options
    ):
        self.channel = Channel.create("requests", max_attempts=max_attempts)
        self.client = RolloutClient(self.channel)
        builder = kind.create_group(engine, RolloutOptions(**options))
        placement = PackedPlacementStrategy(0, num_ranks - 1)
        self.group = builder.launch(job, placement, name="rollout", on_failure=on_failure)
        self.serving = self.group.serve(self.channel)
        if options.get("weights") is None:  # else they wait for these
            num_waiting = num_ranks * min(16, options.get("max_requests", 64))
            wait_until(lambda: self.channel.stats().num_getters == num_waiting)

    def let_go(self):
        self.group.let_go().wait(DEADLINE_S)

    def ask(self, start, num_tokens, **sampling):
        return self.client.begin([start], Sampling(num_tokens, **sampling))[0]

    def end(self):
        self.channel.close()
        return self.serving.results(return_exceptions=True, timeout_s=DEADLINE_S)


def counted(answer, start, step=1):
    tokens = answer.generation.token_ids
    return tokens == tuple(range(start + step, start + step * len(tokens) + 1, step))


def test_samples_are_answered_with_tokens_versions_and_why_they_end(job):
    service = Service(job)
    answers = service.client.generate([7], Sampling(4), n=3, timeout_s=DEADLINE_S)
    assert [answer.generation.token_ids for answer in answers] == [(8, 9, 10, 11)] * 3
    generation = answers[0].generation
    assert (generation.versions, generation.finish_reason) == ((0, 0, 0, 0), "length")
    assert len(generation.logprobs) == 4
    stopped = service.client.generate([7], Sampling(9, stop_token_ids=(9,)), timeout_s=DEADLINE_S)[0]
    assert (stopped.generation.token_ids, stopped.generation.finish_reason) == ((8, 9), "stop")
    assert asyncio.run(service.client.generate_async([1], Sampling(1), n=2))[1].generation.token_ids == (2,)
    served = service.end()
    assert sum(each.num_answered for each in served) == 6
    assert sum(each.num_tokens for each in served) == 3 * 4 + 2 + 2


def test_a_short_sample_does_not_wait_for_a_long_one(job):
    service = Service(job, 1, HELD)
    long = service.ask(0, 5000)
    assert service.ask(0, 3).wait(DEADLINE_S).generation.token_ids == (1, 2, 3)
    assert not long.done()
    long.cancel()
    service.group.drain(finish=False).wait(DEADLINE_S)


def test_what_cannot_be_answered_fails_alone(job):
    service = Service(job, 1, max_tokens=100)
    with pytest.raises(EngineError, match="with max_tokens=100 is more than the 100 tokens"):
        service.ask(0, 100).wait(DEADLINE_S)
    with pytest.raises(EngineError, match="a request is a GenerationRequest, not str"):
        service.channel.ask("count", timeout_s=DEADLINE_S)
    with pytest.raises(EngineError, match=rf"prompt_ids\[0\] is {VOCABULARY}, .* has the ids 0 to {KILLER}"):
        service.ask(VOCABULARY, 1).wait(DEADLINE_S)
    with pytest.raises(TypeError, match=r"prompt_ids\[0\] is 'c'"):
        service.client.begin("count", Sampling(1), n=2)
    assert service.ask(0, 99).wait(DEADLINE_S).generation.finish_reason == "length"
    assert service.end()[0].num_answered == 1


def test_requests_are_taken_by_their_tokens_and_what_finds_no_room_waits_for_nobody_who_is_full(job):
    service = Service(job, 2, HELD, max_tokens=100)
    large = [service.ask(0, 89) for _ in range(2)]  # one fills a rank
    wait_until(lambda: min(service.group.tokens().wait(DEADLINE_S)) > 0)
    small = [service.ask(0, 19) for _ in range(12)]
    service.let_go()
    assert all(answer.wait(DEADLINE_S).generation.finish_reason == "length" for answer in small)
    assert {each.wait(DEADLINE_S).answered_by for each in large} == {"rollout:0", "rollout:1"}
    served = service.end()
    assert max(each.most_tokens for each in served) <= 100
    assert sum(each.num_answered for each in served) == 14


def test_a_bound_on_requests_is_kept(job):
    service = Service(job, 1, SLOW, max_requests=3)
    asked = [service.ask(0, 20) for _ in range(9)]
    for each in asked:
        each.wait(DEADLINE_S)
    assert service.end()[0].most_tokens == 3 * 21


def test_what_a_killed_rank_had_is_answered_by_another(job):
    service = Service(job, 2, HELD)
    asked = [service.ask(start, 150) for start in range(0, 1600, 100)]
    wait_until(lambda: min(service.group.tokens().wait(DEADLINE_S)) > 10)
    os.kill(service.group.pid().wait(DEADLINE_S)[1], signal.SIGKILL)
    service.group.execute_on(0).let_go().wait(DEADLINE_S)
    answers = [each.wait(DEADLINE_S) for each in asked]
    assert all(counted(answer, start) for answer, start in zip(answers, range(0, 1600, 100), strict=True))
    assert [len(answer.generation.token_ids) for answer in answers] == [150] * 16
    assert Counter(answer.answered_by for answer in answers) == {"rollout:0": 16}
    assert {answer.attempt for answer in answers} == {1, 2}
    died = service.end()[1]
    assert isinstance(died, WorkerDied)


def test_a_request_goes_on_with_the_tokens_that_its_dead_rank_has_kept(job):
    service = Service(job, 2, HELD, keep_every=5)
    actor = Actor.create_group().launch(job, PackedPlacementStrategy(4, 4), name="actor")
    asked = service.client.begin([0], Sampling(400))[0]
    partial_queue = ("partial", asked.request.request_id)
    wait_until(lambda: service.channel.qsize(partial_queue) > 0)
    tokens = service.group.tokens().wait(DEADLINE_S)
    rank = tokens.index(max(tokens))
    actor.publish(3).wait(DEADLINE_S)
    service.group.execute_on(1 - rank).update_weights("policy").wait(DEADLINE_S)
    service.group.execute_on(1 - rank).let_go().wait(DEADLINE_S)
    os.kill(service.group.execute_on(rank).pid().wait(DEADLINE_S)[0], signal.SIGKILL)
    answer = asked.wait(DEADLINE_S)
    generation = answer.generation
    assert (answer.answered_by, answer.attempt) == (f"rollout:{1 - rank}", 2)
    num_kept = generation.versions.count(0)
    assert num_kept >= 5
    assert generation.versions == (0,) * num_kept + (3,) * (400 - num_kept)
    assert generation.token_ids == steps_of(0, generation.versions, {0: 1})
    wait_until(lambda: service.channel.qsize(partial_queue) == 0)
    assert service.end()[1 - rank].num_resumed == 1


def steps_of(start, versions, steps=()):
    """What is counted from there under these versions, each of which counts by itself."""
    tokens = []
    for version in versions:
        start += dict(steps).get(version, version)
        tokens.append(start)
    return tuple(tokens)


def test_what_was_kept_of_a_request_that_fails_is_left_in_no_queue(job):
    service = Service(job, 1, partial(FailsAt, step=1), keep_every=4)
    asked = service.ask(0, 20)
    with pytest.raises(EngineError, match="it cannot go on"):
        asked.wait(DEADLINE_S)
    wait_until(lambda: service.channel.qsize(("partial", asked.request.request_id)) == 0)
    service.end()


@pytest.mark.parametrize("mode", ["keep", "abort"])
def test_every_token_has_the_version_that_made_it_when_weights_change_under_load(job, mode):
    service = Service(job, 2, partial(TinyEngine, token_s=0.001, hold_at=50), weights="policy")
    actor = Actor.create_group().launch(job, PackedPlacementStrategy(4, 4), name="actor")
    actor.publish(1).wait(DEADLINE_S)
    asked = [service.ask(start, 300) for start in range(12)]
    paused_s = []
    for version in (2, 3, 4, 5):
        # More than those could have of the versions before that one: some stand still with it.
        there = 12 * (1 + 50 * (version - 2)) + 12
        wait_until(lambda there=there: sum(service.group.tokens().wait(DEADLINE_S)) >= there)
        updates = service.group.update_weights("policy", version, mode=mode)
        actor.publish(version).wait(DEADLINE_S)
        for update in updates.wait(DEADLINE_S):
            assert update.version == version
            paused_s.append(update.paused_s)
    service.let_go()
    answers = [each.wait(DEADLINE_S) for each in asked]
    for start, answer in enumerate(answers):
        versions = answer.generation.versions
        assert list(versions) == sorted(versions)
        assert answer.generation.token_ids == steps_of(start, versions)
        assert answer.generation.finish_reason == "length"
    assert any(len(set(answer.generation.versions)) > 2 for answer in answers)
    assert all(0 < each < DEADLINE_S for each in paused_s)
    service.end()


def test_a_request_gets_weights_as_new_as_it_wants_also_from_a_publisher_that_comes_back(job):
    service = Service(job, 1, partial(TinyEngine, token_s=0.001), weights="policy")
    actor = Actor.create_group().launch(
        job, PackedPlacementStrategy(4, 4), name="actor", on_failure="restart_group"
    )
    actor.publish(1).wait(DEADLINE_S)
    assert service.ask(0, 1).wait(DEADLINE_S).generation.versions == (1,)
    os.kill(actor.health()[0].pid, signal.SIGKILL)
    newer = service.client.begin([0], Sampling(2), n=3, min_version=2)
    actor.retrying().publish(2).wait(DEADLINE_S)
    assert [each.wait(DEADLINE_S).generation.versions for each in newer] == [(2, 2)] * 3
    service.end()


def test_requests_that_wait_for_weights_go_back_at_once_when_their_rank_is_drained(job):
    service = Service(job, 1, partial(AbortsLate, token_s=0.001), weights="policy")
    service.group.leave_garbage().wait(DEADLINE_S)
    actor = Actor.create_group().launch(job, PackedPlacementStrategy(4, 4), name="actor")
    actor.publish(1).wait(DEADLINE_S)
    waiting = service.client.begin([0], Sampling(2), n=3, min_version=2)
    wait_until(lambda: service.channel.stats().num_leased == 3)
    draining = service.group.drain(finish=False)
    wait_until(lambda: service.channel.qsize() == 3)
    service.let_go()
    draining.wait(DEADLINE_S)
    assert not any(each.done() for each in waiting)


def test_what_is_asked_for_is_given_up_where_the_asker_keeps_the_error(job):
    channel = Channel.create("nobody serves it")
    client = RolloutClient(channel)
    with pytest.raises(ResultTimeout) as kept:
        client.generate([0], Sampling(2), n=4, timeout_s=0.01)
    wait_until(lambda: channel.qsize() == 0)

    assert kept.tb is not None


def test_what_is_asked_for_beside_a_sample_that_fails_is_given_up_in_a_coroutine_too(job):
    channel = Channel.create("one is refused")
    client = RolloutClient(channel)

    async def asks():
        asking = asyncio.ensure_future(client.generate_async([0], Sampling(2), n=4))
        refused = await channel.next_request(async_op=True, timeout_s=DEADLINE_S)
        refused.fail(EngineError("it is refused"))
        with pytest.raises(EngineError, match="it is refused"):
            await asking
        await asyncio.to_thread(wait_until, lambda: channel.qsize() == 0)

    asyncio.run(asks())


def test_weights_that_no_rank_follows_are_an_error_of_the_request(job):
    service = Service(job, 1)
    with pytest.raises(EngineError, match="rollout:0 has no weights to take version 2 of"):
        service.client.generate([0], Sampling(2), min_version=2, timeout_s=DEADLINE_S)
    service.end()


def test_an_engine_has_shared_devices_while_it_has_requests_and_sleeps_else(job):
    service = Service(job, 1, takes_turns=True)
    actor = Actor.create_group().launch(job, PackedPlacementStrategy(0, 0), name="actor")
    assert service.ask(0, 3).wait(DEADLINE_S).generation.token_ids == (1, 2, 3)
    held = actor.hold_devices()
    wait_until(lambda: actor.holds_devices().wait(DEADLINE_S) == [True])
    waiting = service.ask(0, 3)
    wait_until(lambda: service.channel.stats().num_leased == 1)
    service.group.drain(timeout_s=0).wait(DEADLINE_S)  # which gives it back as it is
    service.serving.wait(DEADLINE_S)
    wait_until(lambda: service.channel.qsize() == 1)
    service.serving = service.group.serve(service.channel)
    assert not waiting.done()
    actor.let_devices_go().wait(DEADLINE_S)
    held.wait(DEADLINE_S)
    assert waiting.wait(DEADLINE_S).attempt == 1
    assert service.end()[0].num_answered == 1


def test_an_update_that_fails_leaves_the_version_before_in_use(job):
    service = Service(job, 1, HELD)
    actor = Actor.create_group().launch(job, PackedPlacementStrategy(4, 4), name="actor")
    actor.publish_other(7).wait(DEADLINE_S)
    asked = service.ask(0, 200)
    with pytest.raises(WorkerError, match=r"version 0 is in use: .*does not fit"):
        service.group.update_weights("other").wait(DEADLINE_S)
    service.let_go()
    generation = asked.wait(DEADLINE_S).generation
    assert set(generation.versions) == {0}
    service.end()


def test_a_rank_is_drained_and_what_it_hands_back_goes_on_elsewhere(job):
    service = Service(job, 2, HELD)
    asked = [service.ask(0, 300) for _ in range(8)]
    wait_until(lambda: min(service.group.tokens().wait(DEADLINE_S)) > 8)
    service.group.execute_on(0).drain(finish=False).wait(DEADLINE_S)
    service.group.execute_on(1).let_go().wait(DEADLINE_S)
    answers = [each.wait(DEADLINE_S) for each in asked]
    assert {answer.answered_by for answer in answers} == {"rollout:1"}
    assert all(counted(answer, 0) and len(answer.generation.token_ids) == 300 for answer in answers)
    first, second = service.end()
    assert first.num_handed_back == first.num_answered > 0
    assert (second.num_answered, second.num_handed_back) == (8, 0)


def test_a_rank_whose_engine_is_closed_hands_back_what_it_has_and_takes_no_more(job):
    service = Service(job, 2, HELD)
    asked = [service.ask(0, 300) for _ in range(8)]
    wait_until(lambda: min(service.group.tokens().wait(DEADLINE_S)) > 8)
    service.group.execute_on(0).close().wait(DEADLINE_S)
    service.group.execute_on(1).let_go().wait(DEADLINE_S)
    asked += [service.ask(0, 3) for _ in range(8)]
    answers = [each.wait(DEADLINE_S) for each in asked]
    assert {answer.answered_by for answer in answers} == {"rollout:1"}
    assert all(counted(answer, 0) for answer in answers)
    service.end()


def test_an_engine_that_does_not_get_its_first_weights_is_closed(job):
    builder = Rank.create_group(ClosesOnce, RolloutOptions(weights="nobody's"))
    group = builder.launch(job, PackedPlacementStrategy(0, 0), name="rollout")
    with pytest.raises(WorkerError, match="version 0 is in use: they never come"):
        group.start().wait(DEADLINE_S)
    assert group.num_open_engines().wait(DEADLINE_S) == [0]


def test_a_drained_rank_finishes_what_it_has_if_it_may(job):
    service = Service(job, 1, HELD)
    asked = [service.ask(0, 100) for _ in range(4)]
    wait_until(lambda: service.group.tokens().wait(DEADLINE_S)[0] > 8)
    draining = service.group.drain()
    service.let_go()
    draining.wait(DEADLINE_S)
    assert service.serving.wait(DEADLINE_S)[0].num_answered == 4
    assert all(each.done() or each.wait(DEADLINE_S) for each in asked)
    late = service.ask(0, 1)
    again = service.group.serve(service.channel)
    assert late.wait(DEADLINE_S).generation.token_ids == (1,)
    service.group.drain(timeout_s=0).wait(DEADLINE_S)
    assert again.wait(DEADLINE_S)[0].num_answered == 1


def test_a_rank_whose_engine_dies_goes_on_with_a_new_one_that_has_the_newest_weights(job):
    service = Service(job, 1, SLOW, max_attempts=2)
    actor = Actor.create_group().launch(job, PackedPlacementStrategy(4, 4), name="actor")
    actor.publish(3).wait(DEADLINE_S)
    service.group.update_weights("policy").wait(DEADLINE_S)
    warnings = []
    job.session.log_bus.subscribe(
        lambda event: warnings.append(event.message) if isinstance(event, WorkerLogged) else None
    )
    with pytest.raises(ChannelUnanswerable, match="it was told to die"):
        service.ask(KILLER, 1).wait(DEADLINE_S)
    answer = service.ask(0, 4).wait(DEADLINE_S)
    assert (answer.generation.token_ids, answer.generation.versions) == ((3, 6, 9, 12), (3,) * 4)
    (served,) = service.end()
    assert (served.num_answered, served.num_engine_restarts) == (1, 2)
    wait_until(lambda: len(warnings) == 2)
    assert warnings[1].startswith("rollout:0: the counter is gone: it was told to die; a new engine is made")


def test_engines_that_die_too_often_are_named_and_their_requests_go_elsewhere(job):
    service = Service(job, 2, HELD, max_engine_restarts=0)
    asked = [service.ask(0, 200) for _ in range(8)]
    wait_until(lambda: min(service.group.tokens().wait(DEADLINE_S)) > 8)
    with pytest.raises(WorkerError, match="rollout:0 serves channel 'requests' already"):
        service.group.execute_on(0).serve(service.channel, "first").wait(DEADLINE_S)
    poison = service.ask(KILLER, 1)
    failed = service.serving.results(return_exceptions=True, timeout_s=DEADLINE_S)
    assert ["the counter is gone: it was told to die" in str(each) for each in failed] == [True] * 2, failed
    poison.cancel()
    service.let_go()
    again = service.group.serve(service.channel)
    assert all(counted(each.wait(DEADLINE_S), 0) for each in asked)
    service.channel.close()
    again.wait(DEADLINE_S)


def test_a_request_that_kills_its_engines_is_answered_with_why_and_what_ran_beside_it_is_not_lost(job):
    service = Service(job, 1, SLOW, max_engine_restarts=3)
    asked = [service.ask(start, 20) for start in range(4)]
    poison = service.ask(KILLER, 1)
    asked += [service.ask(start, 20) for start in range(4, 8)]
    with pytest.raises(EngineError, match=r"was given out 3 times; the last time .* it was told to die"):
        poison.wait(DEADLINE_S)
    assert all(counted(each.wait(DEADLINE_S), start) for start, each in enumerate(asked))
    (served,) = service.end()
    assert (served.num_answered, served.num_engine_restarts) == (8, 3)


def test_requests_that_come_as_the_engine_dies_go_back_at_once(job):
    dying = Channel.create("dying")
    service = Service(job, 1, partial(DiesAmongMany, step=1))
    service.group.leave_garbage().wait(DEADLINE_S)
    asked = [service.ask(0, 3)]
    dying.get(timeout_s=DEADLINE_S)
    asked += [service.ask(start, 3) for start in range(1, 17)]
    assert all(counted(each.wait(DEADLINE_S), start) for start, each in enumerate(asked))
    assert service.end()[0].num_engine_restarts == 1


def test_a_rank_is_drained_in_time_while_its_engine_starts(job):
    channel = Channel.create("requests")
    builder = Rank.create_group(StartsLate, RolloutOptions())
    group = builder.launch(job, PackedPlacementStrategy(0, 0), name="rollout")
    serving = group.serve(channel)
    group.is_starting().wait(DEADLINE_S)
    group.drain(timeout_s=0).wait(DEADLINE_S)
    assert serving.wait(DEADLINE_S)[0].num_answered == 0
    again = group.serve(channel)
    group.let_start().wait(DEADLINE_S)
    client = RolloutClient(channel)
    assert client.generate([1], Sampling(1), timeout_s=DEADLINE_S)[0].generation.token_ids == (1,)
    channel.close()
    assert again.wait(DEADLINE_S)[0].num_answered == 1


def test_a_conversation_with_tools_goes_on_where_it_was(job):
    service = Service(job, 2)
    conversation = service.client.conversation([5])
    assert conversation.generate(Sampling(2), DEADLINE_S).generation.token_ids == (6, 7)
    conversation.extend([100])
    assert asyncio.run(conversation.generate_async(Sampling(2))).generation.token_ids == (101, 102)
    assert conversation.token_ids == [5, 6, 7, 100, 101, 102]
    assert len(conversation.answers) == 2
    service.end()


def engines_of(answers):
    return Counter(answer.answered_by for answer in answers)


def test_the_samples_of_a_prompt_and_the_turns_of_a_conversation_go_to_one_engine_while_it_has_room(job):
    service = Service(job, 3)
    prompts = [service.client.generate([start], Sampling(3), n=4, timeout_s=DEADLINE_S) for start in range(6)]
    assert all(set(engines_of(answers).values()) == {4} for answers in prompts)
    conversations = [service.client.conversation([start]) for start in range(6)]
    for _ in range(4):
        for conversation in conversations:
            conversation.generate(Sampling(3), DEADLINE_S)
            conversation.extend([17])
    assert all(set(engines_of(each.answers).values()) == {4} for each in conversations)
    service.end()


def test_what_finds_no_room_where_its_prefix_is_goes_elsewhere(job):
    service = Service(job, 2, HELD, max_requests=2)
    asked = service.client.begin([0], Sampling(100), n=4)
    wait_until(lambda: min(service.group.tokens().wait(DEADLINE_S)) > 0)
    service.let_go()
    answers = [each.wait(DEADLINE_S) for each in asked]
    assert sorted(engines_of(answers).values()) == [2, 2]
    conversation = service.client.conversation([0])
    rank = int(conversation.generate(Sampling(1), DEADLINE_S).answered_by[-1])
    os.kill(service.group.execute_on(rank).pid().wait(DEADLINE_S)[0], signal.SIGKILL)
    assert conversation.generate(Sampling(1), DEADLINE_S).answered_by == f"rollout:{1 - rank}"
    service.end()
