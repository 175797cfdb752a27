"""`VectorEnvWorker`: ranks that step gymnasium's environments, ask a policy what to do, and hand on trajectories."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import RecordVideo

from rlinf_scheduler import Worker
from rlinf_scheduler.engines.trajectories import Decisions, Observations, SteppedEnvs, Trajectory, seeds_of
from rlinf_scheduler.errors import ConfigError

MakeEnv = Callable[..., "gymnasium.Env[Any, Any]"]
_MODES = {"same_step": AutoresetMode.SAME_STEP, "next_step": AutoresetMode.NEXT_STEP}
# Set by a launch where EGL does not say which of its devices a rank's accelerator is (hardware/egl.py).
EGL_PROBLEM_VARIABLE = "RLINF_EGL_PROBLEM"


@dataclass(frozen=True, slots=True)
class Envs:
    """The environments of a group.

    Attributes:
        env: gymnasium's name of the environment, or what makes one.
        num_envs: how many the group has, divided among its ranks.
        options: what the environment is made with.
        autoreset: when an environment begins anew that has ended: in the same step, or the next one.
        processes: whether each environment has a process of its own.
    """

    env: str | MakeEnv
    num_envs: int
    options: Mapping[str, Any] = field(default_factory=dict)
    autoreset: Literal["same_step", "next_step"] = "same_step"
    processes: bool = False

    def __post_init__(self) -> None:
        if self.autoreset not in _MODES:
            raise ConfigError(f"autoreset={self.autoreset!r}: it is one of {', '.join(_MODES)}")


@dataclass(frozen=True, slots=True)
class Video:
    """Videos of some environments; needs what `gymnasium.wrappers.RecordVideo` does.

    Attributes:
        folder: of the files, one an episode: `env-3-episode-100.mp4`.
        every: each so many episodes of an environment one is recorded; 0: only those that `record_video` asks for.
        envs: the numbers of the environments among all of the group.
    """

    folder: str
    every: int = 0
    envs: Sequence[int] = (0,)


@dataclass(frozen=True, slots=True)
class Collected:
    """The steps and episodes that a rank has collected.

    Attributes:
        num_steps: steps of all its environments.
        returns: of each episode that ended, in order.
        lengths: likewise, in steps.
    """

    num_steps: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]


class VectorEnvWorker(Worker):
    """Steps its share of a group's environments, in `stages` parts: while one waits for decisions, another is stepped.

    Args:
        envs: the environments. One of your own kind: derive, and override `make_envs`.
        questions: the channel in which `Observations` are asked, and `Decisions` answered.
        trajectories: the channel that `Trajectory` items are put into, each with its steps as its weight and its
            version.
        seed: of all environments; each has its own, whatever the number of ranks.
        stages: into how many parts a rank's environments are divided, where there are as many.
        timeout_s: the longest that it waits for a decision or for room, in seconds; None: as long as it takes.
        video: which videos are made; None: none.

    Raises:
        ConfigError: there are fewer environments than ranks, or they do not reset themselves.
    """

    def __init__(
        self,
        envs: Envs,
        *,
        questions: str = "questions",
        trajectories: str = "trajectories",
        seed: int = 0,
        stages: int = 1,
        timeout_s: float | None = None,
        video: Video | None = None,
    ) -> None:
        super().__init__()
        self._spec, self._video, self._timeout_s = envs, video, timeout_s
        if video is not None:
            self._check_video(video)
        self._questions = self.connect_channel(questions, timeout_s=timeout_s)
        self._trajectories = self.connect_channel(trajectories, timeout_s=timeout_s)
        self._seed, self._num_stages, self._num_wanted = seed, stages, 0
        self._stages = self._make_share(self.members)
        self._sent: list[Any] = []

    def _make_share(self, members: Any) -> list[SteppedEnvs]:
        """Make this rank's part of the environments, in stages."""
        num_envs, size, place = self._spec.num_envs, members.world_size, members.place_of(self.rank)
        if num_envs < size:
            raise ConfigError(f"{num_envs} environments are too few for {size} ranks")
        first, end = (num_envs * each // size for each in (place, place + 1))
        stages = max(1, min(self._num_stages, end - first))
        num_anew = self.num_restarts + (members.epoch << 16)  # none begins with what it has begun with before
        cuts = [first + stage * (end - first) // stages for stage in range(stages + 1)]
        return [
            SteppedEnvs(self.make_envs(part), part.start, seeds_of(self._seed, part, num_anew))
            for part in (range(*cut) for cut in pairwise(cuts))
        ]

    def on_resize(self, _old: Any, new: Any) -> None:
        """Step another part of the environments, which begin anew, as the group has other ranks."""
        self.close()
        self._stages = self._make_share(new) if self.rank in new else []

    def make_envs(self, numbers: range) -> VectorEnv[Any, Any, Any]:
        """Return a vector of the environments with these numbers among all of the group.

        For simulators that step many environments at once, override it. Their `metadata["autoreset_mode"]` says when
        they begin anew.
        """
        makers = [partial(self._make_env, number) for number in numbers]
        mode = _MODES[self._spec.autoreset]
        if self._spec.processes:
            return AsyncVectorEnv(makers, autoreset_mode=mode)
        return SyncVectorEnv(makers, autoreset_mode=mode)

    def collect(self, steps: int, about: Any = None) -> Collected:
        """Step every environment `steps` times and hand over what happened, to the last step.

        Args:
            steps: of each environment.
            about: goes with every question, such as the oldest version that may answer.

        Raises:
            ChannelTimeout, ChannelClosed, ...: as of `ask` and `put`; the next collection goes on from there.
            ConfigError: an answer has too few rows.
        """
        asked = [self._ask(stage, about) for stage in self._stages]
        ended: list[Trajectory] = []
        for _ in range(steps):
            for index, stage in enumerate(self._stages):
                decisions = self._answer(stage, asked[index])
                with self.timer("simulate"):
                    whole = stage.advance(decisions)
                asked[index] = self._ask(stage, about)
                ended += self._hand_over(whole)
        for stage, last in zip(self._stages, asked, strict=True):
            ended += self._hand_over(stage.finish(self._answer(stage, last)))
        while self._sent:
            self._sent.pop().wait()
        num_envs = sum(stage.envs.num_envs for stage in self._stages)
        returns = tuple(each.episode_return for each in ended if each.episode_return is not None)
        lengths = tuple(each.episode_steps for each in ended if each.episode_steps is not None)
        return Collected(steps * num_envs, returns, lengths)

    def record_video(self, episodes: int = 1) -> None:
        """Make videos of the next episodes that begin in the environments of `video`.

        Raises:
            ConfigError: no environments were named for videos, or they are in processes of their own.
        """
        if self._video is None or self._spec.processes:
            raise ConfigError("record_video(): videos on request need video=Video(...), and processes=False")
        self._num_wanted = episodes

    def close(self) -> None:
        """Free the environments; a video that is being recorded ends."""
        for stage in self._stages:
            stage.envs.close()

    def _ask(self, stage: SteppedEnvs, about: Any) -> tuple[Observations, Any]:
        with self.timer("ask"):
            question = stage.observations(about)
            asked = self._questions.ask(question, len(question), async_op=True, timeout_s=self._timeout_s)
            return question, asked

    def _answer(self, stage: SteppedEnvs, asked: tuple[Observations, Any]) -> Decisions:
        question, answer = asked
        return stage.check(answer.wait(), len(question))

    def _hand_over(self, whole: list[Trajectory]) -> list[Trajectory]:
        """Put trajectories; return those with which an episode has ended."""
        for each in whole:
            sent = self._trajectories.put(
                each, len(each), async_op=True, version=each.version, timeout_s=self._timeout_s
            )
            self._sent.append(sent)
        return [each for each in whole if each.episode_return is not None]

    def _make_env(self, number: int) -> gymnasium.Env[Any, Any]:
        make = partial(gymnasium.make, self._spec.env) if isinstance(self._spec.env, str) else self._spec.env
        if self._video is None or number not in self._video.envs:
            return make(**self._spec.options)
        env = make(**{"render_mode": "rgb_array", **self._spec.options})
        video = self._video

        def records(episode: int) -> bool:  # no method: gymnasium copies what it is made with
            if video.every and episode % video.every == 0:
                return True
            self._num_wanted -= (is_wanted := self._num_wanted > 0)
            return is_wanted

        return RecordVideo(env, video.folder, episode_trigger=records, name_prefix=f"env-{number}")

    def _check_video(self, video: Video) -> None:
        if outside := [number for number in video.envs if not 0 <= number < self._spec.num_envs]:
            raise ConfigError(f"Video(envs={list(video.envs)}): there is no environment {outside[0]}")
        if problem := os.environ.get(EGL_PROBLEM_VARIABLE, ""):
            self.log_warning(f"what is rendered may be rendered on another rank's device: {problem}")
