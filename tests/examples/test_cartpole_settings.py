from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rlinf_scheduler.errors import ConfigErrors
from settings import parse_settings

CONF = Path(__file__).parents[2] / "examples" / "cartpole" / "conf"
MODES = ("collocated", "disaggregated", "hybrid")


def section():
    return OmegaConf.to_container(OmegaConf.load(CONF / "base.yaml").training)


def test_the_shipped_settings_are_complete():
    settings = parse_settings(section())
    assert settings.env.id == "CartPole-v1"
    assert settings.required_return == 400
    assert settings.window == 20


def test_every_mistake_is_reported_with_its_key():
    bad = section()
    bad["env"]["num_envs"] = 0
    bad["ppo"]["gama"] = bad["ppo"].pop("gamma")
    with pytest.raises(ConfigErrors) as caught:
        parse_settings(bad)
    assert {error.path for error in caught.value.errors} == {
        "training.env.num_envs",
        "training.ppo.gama",
        "training.ppo.gamma",
    }
    assert "greater than 0; it is 0" in str(caught.value)


def test_only_the_placement_differs_between_the_modes():
    files = {mode: OmegaConf.to_container(OmegaConf.load(CONF / f"{mode}.yaml")) for mode in MODES}
    placements = {mode: file["cluster"].pop("component_placement") for mode, file in files.items()}
    assert files["collocated"] == files["disaggregated"] == files["hybrid"]
    assert len({str(placement) for placement in placements.values()}) == len(MODES)
    assert all(set(placement) == {"env", "rollout", "actor"} for placement in placements.values())
