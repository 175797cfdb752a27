"""Steps a vector of environments and cuts what happens into trajectories; it waits for nobody."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from trajectory import Decision, Trajectory


class Simulation:
    """Environments that advance one step a decision.

    Have a policy decide on `rows()` and call `advance` with its decision; after the last step of a collection call
    `finish` instead. The next collection goes on from where the environments stand.

    Args:
        env_id: gymnasium's name of the environment; its observations are vectors, its actions are discrete.
        num_envs: environments in the vector.
        capacity: the most steps of a collection.
        seed: of the first environment; the others count up from it.
    """

    def __init__(self, env_id: str, *, num_envs: int, capacity: int, seed: int) -> None:
        self._envs = SyncVectorEnv(
            [partial(gymnasium.make, env_id)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP
        )
        self._observations: NDArray[np.float32] = self._envs.reset(seed=seed)[0]
        self._tape = _Tape(num_envs, capacity, self._observations.shape[1])
        self._returns = np.zeros(num_envs)
        self._cut_off: list[_CutOff] = []

    def rows(self) -> NDArray[np.float32]:
        """(num_envs + episodes just cut off, observation size): see `Question.observations`."""
        if not self._cut_off:
            return self._observations
        return np.vstack([self._observations, *(episode.last_state for episode in self._cut_off)])

    def advance(self, decision: Decision) -> list[Trajectory]:
        """Step once; return the trajectories that are complete now."""
        complete = self._judge_cut_off(decision)
        states, num_envs = self._observations, self._envs.num_envs
        self._observations, rewards, terminated, truncated, info = self._envs.step(
            decision.actions[:num_envs]
        )
        self._tape.write(states, decision, rewards)
        self._returns += rewards
        for index in map(int, np.flatnonzero(terminated | truncated)):
            trajectory = replace(
                self._tape.cut(index),
                terminated=bool(terminated[index]),
                truncated=not terminated[index],
                episode_return=float(self._returns[index]),
            )
            self._returns[index] = 0.0
            if trajectory.terminated:
                complete.append(trajectory)
            else:
                self._cut_off.append(_CutOff(trajectory, info["final_obs"][index]))
        return complete

    def finish(self, decision: Decision) -> list[Trajectory]:
        """End the collection: cut all that is open, its next state judged by `decision`, without a step."""
        complete = self._judge_cut_off(decision)
        for index, value in enumerate(decision.values[: self._envs.num_envs]):
            if self._tape.is_open(index):
                complete.append(replace(self._tape.cut(index), last_value=float(value)))
        self._tape.rewind()
        return complete

    def close(self) -> None:
        """Free the environments."""
        self._envs.close()

    def _judge_cut_off(self, decision: Decision) -> list[Trajectory]:
        values = decision.values[self._envs.num_envs :]
        judged = [
            replace(episode.trajectory, last_value=float(value))
            for episode, value in zip(self._cut_off, values, strict=True)
        ]
        self._cut_off.clear()
        return judged


@dataclass(frozen=True, slots=True)
class _CutOff:
    """An episode whose time ran out: complete but for the value of its last state."""

    trajectory: Trajectory
    last_state: NDArray[np.float32]


class _Tape:
    """The steps of one collection, all environments side by side, allocated once."""

    def __init__(self, num_envs: int, capacity: int, observation_size: int) -> None:
        shape = (capacity, num_envs)
        self._observations = np.empty((*shape, observation_size), np.float32)
        self._actions = np.empty(shape, np.int64)
        self._log_probs = np.empty(shape, np.float32)
        self._values = np.empty(shape, np.float32)
        self._rewards = np.empty(shape, np.float32)
        self._versions = np.empty(capacity, np.int64)
        self._starts = np.zeros(num_envs, np.int64)
        self._end = 0

    def write(self, states: NDArray[np.float32], decision: Decision, rewards: NDArray[np.float64]) -> None:
        num_envs = len(states)
        self._observations[self._end] = states
        self._actions[self._end] = decision.actions[:num_envs]
        self._log_probs[self._end] = decision.log_probs[:num_envs]
        self._values[self._end] = decision.values[:num_envs]
        self._rewards[self._end] = rewards
        self._versions[self._end] = decision.version
        self._end += 1

    def is_open(self, index: int) -> bool:
        return bool(self._starts[index] < self._end)

    def cut(self, index: int) -> Trajectory:
        """Copy out what environment `index` did since its last cut, because the tape is written over."""
        steps = slice(int(self._starts[index]), self._end)
        self._starts[index] = self._end
        return Trajectory(
            observations=self._observations[steps, index].copy(),
            actions=self._actions[steps, index].copy(),
            log_probs=self._log_probs[steps, index].copy(),
            values=self._values[steps, index].copy(),
            rewards=self._rewards[steps, index].copy(),
            terminated=False,
            truncated=False,
            last_value=0.0,
            episode_return=None,
            version=int(self._versions[steps.start]),
        )

    def rewind(self) -> None:
        self._starts[:] = 0
        self._end = 0


def spaces_of(env_id: str) -> tuple[int, int]:
    """The size of an environment's observations, and its number of actions.

    Raises:
        ValueError: its observations are no vectors, or its actions are not discrete.
    """
    env = gymnasium.make(env_id)
    observations, actions = env.observation_space, env.action_space
    env.close()
    vectors = isinstance(observations, Box) and len(observations.shape) == 1
    if not vectors or not isinstance(actions, Discrete):
        problem = f"observations must be vectors and actions discrete; they are {observations} and {actions}"
        raise ValueError(f"{env_id}: {problem}")
    return observations.shape[0], int(actions.n)
