"""The three components against each other, over real channels that this process holds: no Ray, no other process."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

import channels
from actor_worker import ActorWorker
from policy import WEIGHTS
from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime
from rlinf_scheduler.engines import Envs, VectorEnvWorker
from rlinf_scheduler.errors import ChannelTimeout, ResultTimeout
from rollout_worker import RolloutWorker
from settings import parse_settings
from waits import wait_until

BASE = Path(__file__).parents[2] / "examples" / "cartpole" / "conf" / "base.yaml"
DEADLINE_S = 60.0


@pytest.fixture
def settings():
    loaded = parse_settings(OmegaConf.to_container(OmegaConf.load(BASE).training))
    return replace(loaded, timeout_s=DEADLINE_S, env=replace(loaded.env, num_envs=5, steps=40))


def env_worker(settings, stages):
    return VectorEnvWorker(Envs(settings.env.id, 5), stages=stages, timeout_s=settings.timeout_s)


@pytest.fixture
def threads():
    # The workers of one process share its threads for torch: they set one, as they do in processes of their own.
    before = torch.get_num_threads()
    with ThreadPoolExecutor(max_workers=3) as executor:
        yield executor
    torch.set_num_threads(before)


@pytest.fixture
def opened():
    with LocalRuntime():
        yield {name: Channel.create(name) for name in channels.ALL}


@pytest.mark.parametrize("stages", [1, 2])
def test_collections_and_updates_alternate_without_losing_a_step(settings, threads, opened, stages):
    env, rollout, actor = (
        env_worker(settings, stages),
        RolloutWorker(settings, stages),
        ActorWorker(settings),
    )
    serving = threads.submit(rollout.serve)
    actor.publish()
    reports = []
    for version in range(3):
        env.collect(40, about=version)
        reports.append(actor.update(batch_weight=5 * 40))
    opened[channels.QUESTIONS].close()
    serving.result(timeout=DEADLINE_S)

    assert [report.version for report in reports] == [1, 2, 3]
    assert [report.num_steps for report in reports] == [200, 400, 600]
    assert [report.lag for report in reports] == [0, 0, 0], "each collection acted with the newest weights"
    assert opened[channels.TRAJECTORIES].qsize() == 0
    assert opened[channels.QUESTIONS].stats().num_items == 0


def test_a_collection_goes_on_beside_an_update_one_version_behind(settings, threads, opened):
    env, rollout, actor = env_worker(settings, 2), RolloutWorker(settings, 2), ActorWorker(settings)
    serving = threads.submit(rollout.serve)
    actor.publish()
    env.collect(40, about=0)
    collecting = threads.submit(env.collect, 40, about=0)
    first = actor.update(batch_weight=200)
    collecting.result(timeout=DEADLINE_S)
    second = actor.update(batch_weight=400 - first.num_steps)
    opened[channels.QUESTIONS].close()
    serving.result(timeout=DEADLINE_S)
    assert first.lag == 0
    assert second.lag <= 1
    assert second.num_steps == 400


def test_questions_wait_for_weights_that_are_new_enough(settings, threads, opened):
    env, rollout, actor = env_worker(settings, 1), RolloutWorker(settings, 1), ActorWorker(settings)
    serving = threads.submit(rollout.serve)
    collecting = threads.submit(env.collect, 40, about=1)
    actor.publish()
    # What the first update learns from is beside the point here: it only has to make version 1.
    with pytest.raises(ChannelTimeout):
        opened[channels.TRAJECTORIES].get_batch(1, timeout_s=0.2)
    actor._version = 1
    actor.publish()
    collecting.result(timeout=DEADLINE_S)
    trajectories = opened[channels.TRAJECTORIES].get_batch(200, timeout_s=DEADLINE_S)
    opened[channels.QUESTIONS].close()
    serving.result(timeout=DEADLINE_S)
    assert {trajectory.version for trajectory in trajectories} == {1}


def test_an_env_that_nobody_answers_says_what_it_waits_for(settings, opened):
    env = env_worker(replace(settings, timeout_s=0.2), 1)
    with pytest.raises(ChannelTimeout, match=r"questions.*ask not done after 0\.2 s"):
        env.collect(40, about=0)


def test_an_actor_that_gets_nothing_says_what_it_waits_for(settings, opened):
    actor = ActorWorker(replace(settings, timeout_s=0.2))
    with pytest.raises(ChannelTimeout, match=channels.TRAJECTORIES):
        actor.update(batch_weight=200)


def test_a_rollout_without_weights_says_so(settings, threads, opened):
    patient = env_worker(settings, 1)
    rollout = RolloutWorker(replace(settings, timeout_s=0.3), 1)
    collecting = threads.submit(patient.collect, 40, about=0)
    wait_until(lambda: opened[channels.QUESTIONS].qsize() == 1)
    with pytest.raises(ResultTimeout, match=WEIGHTS):
        rollout.serve()
    opened[channels.QUESTIONS].delete()
    assert collecting.exception(timeout=DEADLINE_S) is not None
