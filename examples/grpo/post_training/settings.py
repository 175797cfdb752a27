"""The hyperparameters as typed data: the `training` section of the YAML file, read and checked once."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from pydantic import ConfigDict, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, TypeAdapter
from pydantic import ValidationError as Invalid
from pydantic.dataclasses import dataclass

from rlinf.scheduler.errors import ConfigError, ConfigErrors

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, config=_STRICT)
class TaskSettings:
    """What is to be learned: to sort symbols.

    Args:
        num_symbols: how many different ones there are.
        max_length: of a prompt, in symbols.
        median_length: of a prompt.
        spread: standard deviation of the logarithm of the lengths.
    """

    num_symbols: PositiveInt
    max_length: PositiveInt
    median_length: PositiveFloat
    spread: NonNegativeFloat


@dataclass(frozen=True, slots=True, config=_STRICT)
class ModelSettings:
    """The transformer.

    Args:
        kind: "own": that of model.py; "transformers": a Llama of that library.
        width: of its layers.
        num_layers: how many there are.
        num_heads: of attention.
        lora_rank: of the adapters, which are all that learns then; 0: there are none.
    """

    width: PositiveInt
    num_layers: PositiveInt
    num_heads: PositiveInt
    lora_rank: NonNegativeInt = 0
    kind: Literal["own", "transformers"] = "own"

    def __post_init__(self) -> None:
        if self.lora_rank and self.kind != "own":
            raise ValueError("only a model of the kind 'own' has adapters: lora_rank is 0 for others")


@dataclass(frozen=True, slots=True, config=_STRICT)
class RolloutSettings:
    """A rank of the rollout.

    Args:
        num_slots: answers that it writes at a time.
        sizes: how many ranks the rollout has from which step on; before, as many as are placed.
    """

    num_slots: PositiveInt
    sizes: dict[PositiveInt, PositiveInt] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, config=_STRICT)
class GRPOSettings:
    """One step of learning.

    Args:
        prompts_per_step: groups of a global batch, of all ranks of the actor together.
        group_size: answers to one prompt.
        learning_rate: of Adam.
        clip: how far from 1 a probability ratio still counts.
        importance_cap: the largest weight of a token for which the policy that wrote it is out of date.
        max_gradient_norm: longer gradients are scaled down to it.
        token_budget: tokens of a micro-batch, prompts included.
    """

    prompts_per_step: PositiveInt
    group_size: PositiveInt
    learning_rate: PositiveFloat
    clip: PositiveFloat
    importance_cap: PositiveFloat
    max_gradient_norm: PositiveFloat
    token_budget: PositiveInt


@dataclass(frozen=True, slots=True, config=_STRICT)
class Settings:
    """All that a training needs besides its placement.

    Args:
        seed: of prompts, first weights and sampling.
        engine: what writes answers: "own", the rollout itself; "transformers" or "vllm", for a model of that kind.
        device: "cpu", or "cuda" for the devices of the placement.
        num_steps: training ends after so many at the latest.
        stop_reward: training ends once the mean reward over `window` steps reaches it.
        required_reward: a training that ends below it has failed.
        window: steps whose mean reward is judged.
        max_lag: how many versions may lie between the weights that began an answer and those that learn from it.
        policy: how the channel divides a step among the ranks of the actor.
        checkpoint_every: steps between two checkpoints.
        timeout_s: the longest that any part waits for another, in seconds.
        max_restarts: how often a rank of the rollout that died is started again within a minute.
        task: what is to be learned.
        model: the transformer.
        rollout: how answers are written.
        grpo: one step of learning.
    """

    seed: int
    device: Literal["cpu", "cuda"]
    num_steps: PositiveInt
    stop_reward: float
    required_reward: float
    window: PositiveInt
    max_lag: NonNegativeInt
    policy: Literal["round_robin", "least_loaded", "balanced"]
    checkpoint_every: PositiveInt
    timeout_s: PositiveFloat
    max_restarts: NonNegativeInt
    task: TaskSettings
    model: ModelSettings
    rollout: RolloutSettings
    grpo: GRPOSettings
    engine: Literal["own", "transformers", "vllm"] = "own"

    def __post_init__(self) -> None:
        if self.engine != "own" and self.model.kind != "transformers":
            raise ValueError(
                f"engine '{self.engine}' writes with a model of the kind 'transformers' (training.model.kind)"
            )


def parse_settings(section: Any) -> Settings:
    """The settings in `section`, plain data as a YAML file holds it.

    Raises:
        rlinf.scheduler.errors.ConfigErrors: keys that are missing, unknown or have a wrong value: all of them.
    """
    try:
        return TypeAdapter(Settings).validate_python(section)
    except Invalid as error:
        raise ConfigErrors([_config_error(detail) for detail in error.errors()]) from error


def _config_error(detail: Any) -> ConfigError:
    path = ".".join(map(str, ("training", *detail["loc"])))
    given = "" if detail["type"] == "missing" else f"; it is {detail['input']!r}"
    return ConfigError(f"{detail['msg'].lower()}{given}", path=path)
