"""The control flow, with groups that only note what is called."""

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

import channels
from report import UpdateReport
from rlinf_scheduler.errors import ResultTimeout, WorkerDied
from schedule import Schedule
from settings import parse_settings
from training import Training

BASE = Path(__file__).parents[2] / "examples" / "cartpole" / "conf" / "base.yaml"
TURNS = Schedule(pipelined_inference=False, pipelined_learning=False)
PIPELINED = Schedule(pipelined_inference=True, pipelined_learning=True)


@dataclass
class Calls:
    """A fake job: what was called, in order, and the groups and channels to call it on."""

    returns: list[float]
    failing_collection: int | None = None
    log: list[str] = field(default_factory=list)
    num_collections: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def collect(self, steps, about):
        assert steps == 32
        number = self.num_collections
        self.num_collections += 1
        self.log.append(f"collect {number} with {about}")
        if number == self.failing_collection:
            raise WorkerDied("env", 1, "collect", "killed")
        return [None, None]

    async def update(self, batch_weight):
        assert batch_weight == 2 * 16 * 32
        if self.failing_collection is not None:
            await asyncio.Event().wait()
        version = sum(line.startswith("update") for line in self.log) + 1
        self.log.append(f"update {version}")
        mean_return = self.returns[version - 1]
        return [UpdateReport(version, 1024 * version, (), mean_return, 20, 0, 0.5, 0.0)]

    async def serve(self):
        await self.closed.wait()

    async def answer(self, value=None):
        return [value]

    @property
    def parts(self):
        return SimpleNamespace(
            env=SimpleNamespace(world_size=2, collect=self.collect),
            rollout=SimpleNamespace(retrying=lambda: SimpleNamespace(serve=self.serve)),
            actor=SimpleNamespace(update=self.update, publish=self.answer),
            channels={channels.QUESTIONS: SimpleNamespace(close=self.closed.set)},
        )


@pytest.fixture
def settings():
    loaded = parse_settings(OmegaConf.to_container(OmegaConf.load(BASE).training))
    return replace(loaded, max_updates=4, timeout_s=60.0)


def train(calls, schedule, settings):
    training = Training(calls.parts, schedule, settings)
    asyncio.run(training.run())
    return training


def test_with_shared_devices_collecting_and_learning_alternate(settings):
    calls = Calls([10.0, 20.0, 30.0, 40.0])
    training = train(calls, TURNS, settings)
    assert calls.log == [
        "collect 0 with 0",
        "update 1",
        "collect 1 with 1",
        "update 2",
        "collect 2 with 2",
        "update 3",
        "collect 3 with 3",
        "update 4",
    ]
    assert len(training.updates) == 4


def test_with_devices_of_their_own_a_collection_is_always_under_way(settings):
    calls = Calls([10.0, 20.0, 30.0, 40.0])
    train(calls, PIPELINED, settings)
    assert calls.log == [
        "collect 0 with 0",
        "collect 1 with 0",
        "update 1",
        "collect 2 with 1",
        "update 2",
        "collect 3 with 2",
        "update 3",
        "collect 4 with 3",
        "update 4",
    ]


def test_training_stops_when_the_policy_is_good_enough(settings):
    calls = Calls([10.0, 460.0, 470.0, 480.0])
    training = train(calls, TURNS, settings)
    assert [update.mean_return for update in training.updates] == [10.0, 460.0]
    assert calls.closed.is_set(), "the rollout was told that nobody asks any more"


@pytest.mark.parametrize("schedule", [TURNS, PIPELINED])
def test_a_dead_worker_ends_the_training_though_the_actor_still_waits(settings, schedule):
    calls = Calls([10.0] * 4, failing_collection=0)
    with pytest.raises(WorkerDied, match="rank 1 of 'env' died"):
        train(calls, schedule, settings)


def test_workers_that_say_nothing_any_more_end_the_training(settings, monkeypatch):
    monkeypatch.setattr("training._GRACE_S", 0.0)
    calls = Calls([10.0] * 4)

    async def silent(batch_weight):
        await asyncio.Event().wait()

    calls.update = silent
    with pytest.raises(ResultTimeout, match=r"actor\.update\(\)"):
        train(calls, TURNS, replace(settings, timeout_s=0.1))
