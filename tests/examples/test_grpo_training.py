"""A post-training in small, all components against each other in this process: no Ray, no other process."""

import asyncio
import inspect
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from sharded_actor import AskedActor, DyingActor

from forked_job import ForkedJob
from killed_ranks import Survival, account_for_prompts, report
from post_training import channels
from post_training.actor_worker import ActorWorker
from post_training.component import ModelWorker
from post_training.engine import make_engine
from post_training.inference_worker import InferenceWorker
from post_training.launch import open_channels, rollout_group
from post_training.model import WEIGHTS
from post_training.reward_worker import RewardWorker
from post_training.settings import parse_settings
from post_training.training import Training
from rlinf.scheduler import Channel, PackedPlacementStrategy, Topology
from rlinf.testing import LocalRuntime
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.engines import RolloutOptions, RolloutWorker
from rlinf_scheduler.errors import ChannelTimeout, ConfigError
from rlinf_scheduler.events import WorkerReturned
from waits import wait_until

pytestmark = pytest.mark.system

BASE = Path(__file__).parents[2] / "examples" / "grpo" / "conf" / "base.yaml"
DEADLINE_S = 60.0


@pytest.fixture
def settings():
    loaded = parse_settings(OmegaConf.to_container(OmegaConf.load(BASE).training))
    return replace(
        loaded,
        num_steps=4,
        checkpoint_every=2,
        timeout_s=DEADLINE_S,
        task=replace(loaded.task, max_length=6, median_length=3.0),
        model=replace(loaded.model, width=16, num_layers=1),
        rollout=replace(loaded.rollout, num_slots=6),
        grpo=replace(loaded.grpo, prompts_per_step=4, group_size=3, token_budget=64),
    )


@pytest.fixture(autouse=True)
def one_thread():
    # The workers of one process share its threads for torch: they set one, as they do in processes of their own.
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Called:
    """The result of a call that runs on a thread of this process; as `GroupResult`, of one rank."""

    def __init__(self, future):
        self._future = future
        self.settled = Promise()
        future.add_done_callback(lambda done: self.settled.set_result(done))

    def wait(self, timeout_s=None):
        return [self._future.result(timeout_s)]

    def done(self):
        return self._future.done()


async def cancel_all():
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Local:
    """A group of one rank in this process: plain methods run on its thread one by one, the others on its event loop."""

    def __init__(self, worker):
        self.worker = worker
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._loop = asyncio.new_event_loop()
        self._looping = Thread(target=self._loop.run_forever)
        self._looping.start()

    def __getattr__(self, name):
        method = getattr(self.worker, name)
        if inspect.iscoroutinefunction(method):
            return lambda *args: Called(asyncio.run_coroutine_threadsafe(method(*args), self._loop))
        return lambda *args: Called(self._thread.submit(method, *args))

    def retrying(self):
        return self

    def stop(self):
        self._thread.shutdown()
        asyncio.run_coroutine_threadsafe(cancel_all(), self._loop).result(DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._looping.join()
        self._loop.close()


class Job:
    """All parts of a training, on channels that this process holds."""

    def __init__(self, settings, rollout=None, actor=None):
        prompts, requests, groups = open_channels(1, 1)
        self.groups = {
            "rollout": rollout
            or Local(RolloutWorker(partial(make_engine, settings), RolloutOptions(weights=WEIGHTS))),
            "reward": Local(RewardWorker(settings)),
            "inference": Local(InferenceWorker(settings)),
            "actor": actor or Local(ActorWorker(settings)),
        }
        self.parts = SimpleNamespace(**self.groups, prompts=prompts, requests=requests, groups=groups)

    def stop(self):
        for name in channels.ALL:
            Channel.connect(name).close()
        for group in self.groups.values():
            if isinstance(group, Local):
                group.stop()


def launched_rollout(cluster, settings):
    """A rollout of two ranks, as the example launches it."""
    return rollout_group(settings, takes_turns=False).launch(
        cluster,
        PackedPlacementStrategy(0, 1),
        name="rollout",
        on_failure="restart",
        max_restarts=settings.max_restarts,
    )


def launched_actor(cluster, settings):
    """An actor of two ranks, each with shards of the model."""
    return AskedActor.create_group(settings).launch(cluster, PackedPlacementStrategy(2, 3), name="actor")


def train(settings, *, max_lag, checkpoint=None, resume=False, on_step=lambda _: None):
    with LocalRuntime() as runtime:
        runtime.provide(Topology, Topology.parse("1x4"))  # who saves asks for the cluster
        job = Job(settings)
        try:
            training = Training(job.parts, settings, max_lag, checkpoint, on_step)
            training.run(resume=resume)
        finally:
            job.stop()
    return training


@pytest.mark.parametrize("max_lag", [0, 1, 2])
def test_every_prompt_is_learned_from_once_and_none_is_staler_than_allowed(settings, max_lag):
    training = train(settings, max_lag=max_lag)
    assert [step.version for step in training.steps] == [1, 2, 3, 4]
    assert training.progress.first_left == 4 * settings.grpo.prompts_per_step
    assert not training.progress.ahead
    assert max(step.lag for step in training.steps) <= max_lag
    assert all(len(step.lengths) == 4 * 3 for step in training.steps)
    assert all(0 <= step.reward <= 1 for step in training.steps)


def test_a_training_that_goes_on_from_a_checkpoint_learns_from_what_the_first_one_has_not(settings, tmp_path):
    checkpoint = tmp_path / "checkpoint"

    class Killed(Exception):
        pass

    def killed_after_the_third(step):
        if step.version == 3:
            raise Killed

    with pytest.raises(Killed):
        train(settings, max_lag=1, checkpoint=checkpoint, on_step=killed_after_the_third)
    # The third step was not saved: it is made again.
    resumed = train(settings, max_lag=1, checkpoint=checkpoint, resume=True)
    assert [step.version for step in resumed.steps] == [3, 4]
    assert resumed.progress.first_left == 4 * settings.grpo.prompts_per_step
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_a_checkpoint_of_another_training_is_refused(settings, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    train(replace(settings, num_steps=2), max_lag=0, checkpoint=checkpoint)
    with pytest.raises(ConfigError, match="another training"):
        train(replace(settings, seed=1), max_lag=0, checkpoint=checkpoint, resume=True)
    with pytest.raises(ConfigError, match="no checkpoint"):
        train(settings, max_lag=0, checkpoint=tmp_path / "none", resume=True)


def test_the_failure_of_a_component_ends_the_training_at_once(settings, monkeypatch):
    def fails(self, prompt, answers):
        raise ArithmeticError("no score")

    monkeypatch.setattr(RewardWorker, "_score", fails)
    with pytest.raises(ArithmeticError, match="no score"):
        train(settings, max_lag=1)


def test_a_device_that_is_not_there_is_named(settings):
    with pytest.raises(ConfigError, match="'cuda'"):
        ModelWorker(replace(settings, device="cuda"))


def test_an_actor_that_gets_nothing_says_what_it_waits_for(settings):
    with LocalRuntime():
        open_channels(1, 1)
        actor = ActorWorker(replace(settings, timeout_s=0.2))
        with pytest.raises(ChannelTimeout, match="groups"):
            actor.take()


@pytest.fixture
def forked_job():
    """A driver that launches processes, without Ray."""
    job = ForkedJob()
    yield job
    job.close()


def test_a_rank_of_the_rollout_that_is_killed_comes_back_and_every_answer_counts_once(
    forked_job, settings, tmp_path
):
    """`benchmarks/killed_ranks.py` in short: two ranks in processes of their own, one of which is killed.

    Those of the actor have shards of a model of which only adapters learn, and are handed over.
    """
    settings = replace(settings, model=replace(settings.model, lora_rank=2))
    outcome = Survival("grpo")
    forked_job.session.bus.subscribe(outcome.hear)
    with forked_job.starting():  # the ranks wait in `__init__` for their channels
        job = Job(settings, launched_rollout(forked_job, settings), launched_actor(forked_job, settings))

    def kill(step):
        if step.version == 1:
            os.kill(job.parts.rollout.health()[1].pid, signal.SIGKILL)

    training = Training(job.parts, settings, 1, tmp_path / "checkpoint", on_step=kill)
    try:
        training.run()
        account_for_prompts(outcome, training, settings)
        restored = job.parts.actor.restore(tmp_path / "checkpoint").wait(DEADLINE_S)
        assert restored == [training.progress] * 2
        assert all(job.parts.actor.has_the_gradient_of_a_whole_model().wait(DEADLINE_S))
    finally:
        job.stop()
    assert not outcome.problems, report(outcome)
    assert outcome.num_steps == settings.num_steps
    wait_until(lambda: len(outcome.returns) == 1)
    job.parts.actor.terminate()
    job.parts.rollout.terminate()
    wait_until(lambda: forked_job.living == 1)  # the channels'


def test_the_rollout_grows_and_shrinks_and_one_that_has_come_is_killed_and_every_answer_counts_once(
    forked_job, settings, tmp_path
):
    settings = replace(settings, num_steps=6, rollout=replace(settings.rollout, sizes={1: 3, 4: 1}))
    outcome = Survival("grpo")
    forked_job.session.bus.subscribe(outcome.hear)
    with forked_job.starting():
        rollout = launched_rollout(forked_job, settings)
        job = Job(settings, rollout, launched_actor(forked_job, settings))
    sizes = []

    def look(step):
        if step.version == 2:
            wait_until(lambda: rollout.world_size == 3)
            os.kill(rollout.health()[2].pid, signal.SIGKILL)
        if step.version == 5:
            wait_until(lambda: rollout.world_size == 1)
        sizes.append(rollout.world_size)

    training = Training(job.parts, settings, 1, tmp_path / "checkpoint", on_step=look)
    try:
        training.run()
        account_for_prompts(outcome, training, settings)
    finally:
        job.stop()
    assert not outcome.problems, report(outcome)
    assert outcome.num_steps == settings.num_steps
    assert (sizes[:2], sizes[-2:], rollout.ranks) == ([2, 3], [1, 1], (0,))
    job.parts.actor.terminate()
    rollout.terminate()
    wait_until(lambda: forked_job.living == 1)  # the channels'


def test_an_actor_whose_ranks_are_killed_goes_on_by_itself_from_its_checkpoint(
    forked_job, settings, tmp_path
):
    settings = replace(settings, num_steps=5)
    heard = []
    forked_job.session.bus.subscribe(heard.append)
    with forked_job.starting():
        actor = DyingActor.create_group(settings).launch(
            forked_job, PackedPlacementStrategy(2, 3), name="actor", on_failure="restart_group"
        )
        job = Job(settings, actor=actor)
    steps = []

    def kill_before_there_is_a_checkpoint(step):
        steps.append(step.version)
        if len(steps) == 1:
            os.kill(actor.health()[0].pid, signal.SIGKILL)

    training = Training(job.parts, settings, 1, tmp_path / "checkpoint", kill_before_there_is_a_checkpoint)
    try:
        training.run()
    finally:
        job.stop()
    # Step 1 anew, since there was no checkpoint; then the rank dies in the step after version 3, the second step.
    assert steps == [1, 1, 2, 3, 4, 5]
    assert (training.progress.num_steps, training.progress.first_left) == (5, 20)
    assert [each.num_restarts for each in actor.health()] == [2, 2]
    returns = [event.after_s for event in heard if isinstance(event, WorkerReturned)]
    assert len(returns) == 4
    actor.terminate()
    wait_until(lambda: forked_job.living == 1)  # the channels'
