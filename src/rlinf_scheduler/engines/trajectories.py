"""Vectors of environments stepped by decisions, and what happens in them cut into trajectories; it waits for nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from rlinf_scheduler.errors import ConfigError

# So many steps have room in the beginning.
_FIRST_ROOM = 32


@dataclass(frozen=True, slots=True)
class Observations:
    """A question: what to do in these states?

    Attributes:
        rows: an array (rows, ...), or a dict or tuple of such arrays as the environments' observations are. The first
            rows are states to act in, one an environment; the rest are last states of episodes that were cut off, of
            which only the other columns of the answer, such as their values, are wanted.
        envs: the number of each environment among all of the group, (environments,), int64.
        begins: whether an episode begins there, (environments,), bool: for policies that remember.
        about: what `collect` was told.
    """

    rows: Any
    envs: NDArray[np.int64]
    begins: NDArray[np.bool_]
    about: Any = None

    def __len__(self) -> int:
        """Rows: the weight of the question in its channel."""
        return _num_rows(self.rows)


@dataclass(frozen=True, slots=True)
class Decisions:
    """The answer, a row for each row of the question.

    Attributes:
        actions: (rows, ...), or a dict or tuple of such arrays.
        columns: what else is kept of each row, (rows, ...) each: log-probabilities, values.
        version: of the weights that answered.
    """

    actions: Any
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    version: int = 0

    def split(self, sizes: Iterable[int]) -> list[Decisions]:
        """Return the parts with so many rows each: the answers to questions that were decided together."""
        parts, first = [], 0
        for size in sizes:
            rows = slice(first, first + size)
            parts.append(Decisions(_row(self.actions, rows), _row(self.columns, rows), self.version))
            first += size
        return parts


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Consecutive steps of one environment, at most one episode, never empty.

    Attributes:
        observations: the states acted in, (steps, ...), or a dict or tuple of such arrays.
        actions: (steps, ...), likewise.
        rewards: (steps,), float32.
        columns: what was decided besides, (steps, ...) each.
        terminated: whether the episode ended by its last state, after which nothing is worth anything.
        truncated: whether it ended for another reason, such as its time. A trajectory that is neither was cut at the
            end of a collection, and its episode goes on.
        next_observation: the state after the last step.
        next_columns: what was decided about that state, one value each; empty where terminated.
        episode_return: the sum of the whole episode's rewards where one ended here, else None.
        episode_steps: likewise, its length.
        version: of the oldest weights that acted in it.
        env: the number of the environment among all of the group.
    """

    observations: Any
    actions: Any
    rewards: NDArray[np.float32]
    columns: Mapping[str, NDArray[Any]]
    terminated: bool
    truncated: bool
    next_observation: Any
    next_columns: Mapping[str, Any]
    episode_return: float | None
    episode_steps: int | None
    version: int
    env: int

    def __len__(self) -> int:
        """Steps: the weight of the trajectory in its channel."""
        return len(self.rewards)

    def bootstrap(self, column: str) -> float:
        """Return a column's value of the state after the last step: 0 where terminated, for nothing follows."""
        return 0.0 if self.terminated else float(self.next_columns[column])


class _Tape:
    """The steps of a collection, all environments side by side; its arrays are used again."""

    def __init__(self) -> None:
        self._arrays: Any = None
        self._room = 0
        self.num_steps = 0

    def write(self, batch: Any) -> None:
        if self._arrays is None:
            self._room = _FIRST_ROOM
            self._arrays = _map(lambda each: np.empty((self._room, *each.shape), each.dtype), batch)
        elif self.num_steps == self._room:
            self._room *= 2
            self._arrays = _map(lambda each: np.concatenate([each, np.empty_like(each)]), self._arrays)
        _map(lambda array, each: array.__setitem__(self.num_steps, each), self._arrays, batch)
        self.num_steps += 1

    def cut(self, first: int, env: int) -> Any:
        """Copy what an environment did since a step, because the arrays are written over."""
        return _map(lambda each: each[first : self.num_steps, env].copy(), self._arrays)


class SteppedEnvs:
    """Environments that advance one step a decision.

    Have somebody decide on `observations` and call `advance` with that; after the last step of a collection call
    `finish` instead. The next collection goes on where the environments stand.

    Args:
        envs: resets each environment by itself when its episode has ended, in the same step or the next one.
        first_env: the number of its first environment among all of the group.
        seeds: one for each environment.

    Raises:
        ConfigError: the environments are not reset by themselves.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any], first_env: int, seeds: Sequence[int]) -> None:
        self.envs = envs
        num_envs = envs.num_envs
        mode = envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        if mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
            raise ConfigError(f"autoreset mode {mode}: the environments must reset themselves when they end")
        self._same_step = mode == AutoresetMode.SAME_STEP
        self._numbers = np.arange(first_env, first_env + num_envs)
        self._tape = _Tape()
        self._versions: list[int] = []
        self._columns: set[str] | None = None
        self._starts = [0] * num_envs
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self._resets = np.zeros(num_envs, np.bool_)
        self._begins = np.ones(num_envs, np.bool_)
        # Episodes that were cut off: whole but for what is decided about their last states.
        self._cut_off: list[tuple[int, Trajectory]] = []
        self._rows: Any = envs.reset(seed=list(seeds))[0]

    def observations(self, about: Any = None) -> Observations:
        """Return what is to be decided now."""
        rows = self._rows
        if self._same_step and self._cut_off:
            rows = _joined(rows, [trajectory.next_observation for _, trajectory in self._cut_off])
        return Observations(rows, self._numbers, self._begins, about)

    def advance(self, decisions: Decisions) -> list[Trajectory]:
        """Step once; return the trajectories that are whole now."""
        actions, columns = _row((decisions.actions, decisions.columns), slice(self.envs.num_envs))
        before = self._rows
        self._rows, rewards, terminated, truncated, info = self.envs.step(actions)
        whole = list(self._judged(decisions))
        self._tape.write((before, actions, columns, rewards.astype(np.float32)))
        self._versions.append(decisions.version)
        ended = terminated | truncated
        if self._same_step:
            self._returns += rewards
            self._lengths += 1
            self._begins = ended
        else:  # those that have ended before have not acted, but begun anew
            self._begins, self._resets = self._resets, ended
            self._returns += np.where(self._begins, 0, rewards)
            self._lengths += ~self._begins
            for idle in np.flatnonzero(self._begins).tolist():
                self._starts[idle] = self._tape.num_steps
        for env in np.flatnonzero(ended).tolist():
            after = _row(info["final_obs"] if self._same_step else self._rows, env)
            trajectory = self._ended(env, after, is_terminated=bool(terminated[env]))
            if trajectory.terminated:
                whole.append(trajectory)
            else:
                self._cut_off.append((env, trajectory))
        return whole

    def finish(self, decisions: Decisions) -> list[Trajectory]:
        """End the collection: cut all that is open, and judge its next states by `decisions`, without a step."""
        whole = list(self._judged(decisions))
        for env in range(self.envs.num_envs):
            if self._starts[env] < self._tape.num_steps:
                cut = self._cut(env, _row(self._rows, env))
                whole.append(replace(cut, next_columns=_row(decisions.columns, env)))
        self._tape.num_steps = 0
        self._versions.clear()
        self._starts = [0] * self.envs.num_envs
        return whole

    def check(self, decisions: Any, num_rows: int) -> Decisions:
        """Return an answer that has a row for each row of its question.

        Raises:
            ConfigError: it has not.
        """
        if not isinstance(decisions, Decisions):
            raise ConfigError(f"environments are answered by Decisions, not a {type(decisions).__name__}")
        needed = {"actions": self.envs.num_envs, **dict.fromkeys(decisions.columns, num_rows)}
        for name, needs in needed.items():
            has = _num_rows(decisions.actions if name == "actions" else decisions.columns[name])
            if has < needs:
                raise ConfigError(f"an answer has {has} rows of '{name}', and the question has {needs}")
        names = set(decisions.columns)
        if self._columns is None:
            self._columns = names
        elif names != self._columns:
            raise ConfigError(
                f"an answer has the columns {sorted(names)}, and others {sorted(self._columns)}"
            )
        return decisions

    def _judged(self, decisions: Decisions) -> Iterator[Trajectory]:
        for place, (env, trajectory) in enumerate(self._cut_off, self.envs.num_envs):
            # In the next step the last state is still the environment's own row.
            columns = _row(decisions.columns, place if self._same_step else env)
            yield replace(trajectory, next_columns=columns)
        self._cut_off.clear()

    def _ended(self, env: int, after: Any, *, is_terminated: bool) -> Trajectory:
        ended = replace(
            self._cut(env, after),
            terminated=is_terminated,
            truncated=not is_terminated,
            episode_return=float(self._returns[env]),
            episode_steps=int(self._lengths[env]),
        )
        self._returns[env] = self._lengths[env] = 0
        return ended

    def _cut(self, env: int, after: Any) -> Trajectory:
        first, self._starts[env] = self._starts[env], self._tape.num_steps
        observations, actions, columns, rewards = self._tape.cut(first, env)
        return Trajectory(
            observations=observations,
            actions=actions,
            rewards=rewards,
            columns=columns,
            terminated=False,
            truncated=False,
            next_observation=after,
            next_columns={},
            episode_return=None,
            episode_steps=None,
            version=min(self._versions[first:]),
            env=int(self._numbers[env]),
        )


def seeds_of(seed: int, numbers: range, num_restarts: int = 0) -> list[int]:
    """Return the seed of each environment: the same whatever rank has it.

    >>> seeds_of(7, range(4))[2:] == seeds_of(7, range(2, 4))
    True
    """
    return [
        int(np.random.SeedSequence((seed, number, num_restarts)).generate_state(1)[0]) for number in numbers
    ]


def _map(function: Callable[..., Any], batch: Any, *others: Any) -> Any:
    """Call a function with each array of a dict, or a tuple, of arrays, and with those of others beside it."""
    if type(batch) is np.ndarray:  # most are, and the question costs less than the next one
        return function(batch, *others)
    if isinstance(batch, Mapping):
        return {
            name: _map(function, each, *(other[name] for other in others)) for name, each in batch.items()
        }
    if isinstance(batch, tuple):
        return tuple(_map(function, *each) for each in zip(batch, *others, strict=True))
    return function(batch, *others)


def _row(batch: Any, index: int | slice) -> Any:
    return _map(lambda each: each[index], batch)


def _joined(batch: Any, rows: Sequence[Any]) -> Any:
    return _map(lambda each, *added: np.concatenate([each, np.stack(added)]), batch, *rows)


def _num_rows(batch: Any) -> int:
    while isinstance(batch, Mapping | tuple):
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return len(batch)
