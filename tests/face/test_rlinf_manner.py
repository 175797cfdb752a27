"""Programs in RLinf's manner, whole: runners, workers and channels, by RLinf's names only."""

import pytest

from rlinf.scheduler import Channel
from rlinf_manner import decoupled_sac, embodied, nested_engines, patch_sync, reasoning

pytestmark = [pytest.mark.ray, pytest.mark.system]


@pytest.fixture
def outcome(driver):
    """Run a program; what it leaves to the end of its driver ends with the test: others have the same job."""
    channels, started = set(driver.channels), []

    def run(program, config):
        groups = program.launch(config)
        started.extend(groups.values())
        return program.run(config, groups)

    yield run
    for group in started:
        group.terminate()
    for name in set(driver.channels) - channels:
        Channel.connect(name).delete()


def test_an_embodied_run_learns(outcome):
    history = outcome(embodied, embodied.CONFIG)
    assert [step["versions"] for step in history] == [[[[number]], [[number]]] for number in range(4)]
    for step in history:
        assert step["gain"][0] == step["gain"][1], "the actors have the same weights"
        assert step["timers"] == (["env_step", "interact"], 3, True)
    assert history[0]["distance"] == pytest.approx([0.151875, 0.394875, 0.637875]), (
        "0.9 ** 3 of where they began"
    )
    assert sum(history[-1]["distance"]) < sum(history[0]["distance"]) / 4


@pytest.mark.parametrize(
    "config", [reasoning.DISAGGREGATED, reasoning.COLLOCATED], ids=["apart", "collocated"]
)
def test_a_reasoning_run_learns(outcome, config):
    history = outcome(reasoning, config)
    # Each step halves the distance from the best answer, 3; both ranks of the actor have the same.
    expected = [(-9.625, 1.5), (-2.875, 2.25), (-1.1875, 2.625)]
    for step, (reward, mean) in zip(history, expected, strict=True):
        assert step["answered"] == 4
        assert step["seconds"] == (True, True)
        for told, learned in step["trained"]:
            assert told == {"prompts": [0, 1, 2, 3], "reward": pytest.approx(reward)}
            assert learned == pytest.approx(mean)


def test_an_asynchronous_run_learns_from_whoever_has_answered(outcome):
    told = outcome(decoupled_sac, decoupled_sac.CONFIG)
    assert [step["gain"] for step in told["history"]] == pytest.approx([0.25, 0.375, 0.4375, 0.46875])
    assert max(step["critic_loss"] for step in told["history"]) < 1e-12
    assert told["ended"] == ["stopped"] * 4
    assert {metric["rank"] for metric in told["env"]} == {0, 1, 2}
    assert all(metric["time"]["step"] > 0 for metric in told["env"])
    assert told["versions"] == sorted(told["versions"])


def test_weights_are_synced_by_patches(outcome):
    history = outcome(patch_sync, patch_sync.CONFIG)
    # What differs from the version before is sent; all of it the first time.
    assert [sent for sent, _ in history] == [36, 2, 2, 0]
    sums = [{"embed": 0.0, "head": 0.0}, {"embed": 2.0, "head": 0.0}, *[{"embed": 4.0, "head": 2.0}] * 2]
    assert [received for _, received in history] == [
        [(version, state)] * 4 for version, state in enumerate(sums)
    ]


def test_engines_below_ranks_take_their_weights_themselves(outcome):
    told = outcome(nested_engines, nested_engines.CONFIG)
    assert told["who"] == [
        [(rank, engine, 2, f"RolloutGroup:{rank}:{engine}") for engine in range(2)] for rank in range(2)
    ]
    # An engine's part of the weights is the scale, the other's twice that.
    assert told["answered"] == [[[3.0, 6.0], [9.0]], [[30.0, 60.0], [90.0]]]
    assert told["ended"] == [[0, 0], [0, 0]]
