"""The hyperparameters as typed data: the `training` section of the YAML file, read and checked once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from rlinf.scheduler.errors import ConfigError, ConfigErrors

_STRICT = ConfigDict(extra="forbid")
_Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class EnvSettings:
    """The environments.

    Args:
        id: gymnasium's name; observations must be vectors and actions discrete.
        num_envs: environments of one worker process.
        steps: of every environment in one collection.
    """

    id: str
    num_envs: PositiveInt
    steps: PositiveInt


@dataclass(frozen=True, slots=True, config=_STRICT)
class PPOSettings:
    """One update.

    Args:
        learning_rate: of Adam at the start.
        final_learning_rate: at the last of the planned updates; it falls linearly.
        gamma: discount of a step.
        gae_lambda: how far rewards, and not the critic, make the advantages.
        clip: how far from 1 a probability ratio still counts.
        num_epochs: passes over the batch.
        minibatch_size: steps of one gradient.
        entropy_weight: bonus for undecided policies.
        value_weight: of the critic's loss.
        max_gradient_norm: longer gradients are scaled down to it.
    """

    learning_rate: PositiveFloat
    final_learning_rate: NonNegativeFloat
    gamma: _Share
    gae_lambda: _Share
    clip: PositiveFloat
    num_epochs: PositiveInt
    minibatch_size: PositiveInt
    entropy_weight: NonNegativeFloat
    value_weight: NonNegativeFloat
    max_gradient_norm: PositiveFloat


@dataclass(frozen=True, slots=True, config=_STRICT)
class Settings:
    """All that a training needs besides its placement.

    Args:
        seed: of environments, first weights, sampling and minibatches.
        max_updates: training ends after so many at the latest.
        window: episodes of which the mean return is judged.
        stop_return: training ends once the mean over a full window reaches it.
        required_return: a training that ends below it has failed.
        timeout_s: the longest that any part waits for another, in seconds.
        max_restarts: how often a rank of the rollout that died is started again within a minute.
        hidden_sizes: of the policy's and of the critic's hidden layers.
        device: of the policy: "cpu", or "cuda" for the devices of the placement.
        env: the environments.
        ppo: one update.
    """

    seed: int
    max_updates: PositiveInt
    window: PositiveInt
    stop_return: float
    required_return: float
    timeout_s: PositiveFloat
    max_restarts: NonNegativeInt
    hidden_sizes: tuple[PositiveInt, ...]
    device: Literal["cpu", "cuda"]
    env: EnvSettings
    ppo: PPOSettings


def parse_settings(section: Any) -> Settings:
    """The settings in `section`, plain data as a YAML file holds it.

    Raises:
        rlinf.scheduler.errors.ConfigErrors: keys that are missing, unknown or have a wrong value: all of them.
    """
    try:
        return TypeAdapter(Settings).validate_python(section)
    except ValidationError as error:
        raise ConfigErrors([_config_error(detail) for detail in error.errors()]) from error


def _config_error(detail: ErrorDetails) -> ConfigError:
    path = ".".join(map(str, ("training", *detail["loc"])))
    given = "" if detail["type"] == "missing" else f"; it is {detail['input']!r}"
    return ConfigError(f"{detail['msg'].lower()}{given}", path=path)
