"""The component `env`: steps real environments, asks the rollout what to do, hands trajectories to the actor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import channels
from phases import PhaseClock
from rlinf.scheduler import Worker
from settings import Settings
from simulation import Simulation
from trajectory import Decision, Question, Trajectory


@dataclass(slots=True)
class _Stage:
    """One part of a worker's environments: a vector with at most one question in flight."""

    simulation: Simulation
    reply_to: str
    asked: Any = None
    answer: Any = None


class EnvWorker(Worker):
    """Steps its share of the environments, in `stages` parts: while one waits for decisions, another is stepped.

    Args:
        settings: of the training.
        stages: into how many parts the environments are divided.
    """

    def __init__(self, settings: Settings, stages: int) -> None:
        super().__init__()
        self._timeout_s = settings.timeout_s
        self._num_steps = settings.env.steps
        self._steps = self.connect_channel(channels.STEPS, timeout_s=self._timeout_s)
        self._trajectories = self.connect_channel(channels.TRAJECTORIES, timeout_s=self._timeout_s)
        self._stages = [self._stage(settings, stage, stages) for stage in range(stages)]
        self._sent: list[Any] = []
        self._clock = PhaseClock()

    def collect(self, min_version: int) -> None:
        """Step every environment `settings.env.steps` times and hand over what happened, to the last step.

        Args:
            min_version: the oldest weights that may choose the actions.
        """
        for stage in self._stages:
            self._ask(stage, min_version)
        for _ in range(self._num_steps):
            for stage in self._stages:
                decision = self._await_decision(stage)
                with self._clock.phase("simulate"):
                    complete = stage.simulation.advance(decision)
                self._ask(stage, min_version)
                self._hand_over(complete)
        for stage in self._stages:
            self._hand_over(stage.simulation.finish(self._await_decision(stage)))
        self._confirm_handed_over()

    def phases(self) -> dict[str, float]:
        """Seconds by phase since the start."""
        return self._clock.read()

    def _stage(self, settings: Settings, stage: int, stages: int) -> _Stage:
        total = settings.env.num_envs
        first, end = stage * total // stages, (stage + 1) * total // stages
        simulation = Simulation(
            settings.env.id,
            num_envs=end - first,
            capacity=settings.env.steps,
            # Far apart for different trainings, and the same environments however they are divided.
            seed=settings.seed * 1_000_003 + self.rank * total + first,
        )
        return _Stage(simulation, channels.decisions_for(self.rank, stage))

    def _ask(self, stage: _Stage, min_version: int) -> None:
        with self._clock.phase("ask"):
            rows = stage.simulation.rows()
            # The get goes first and waits in the channel: the decision comes without a further round trip.
            stage.answer = self._steps.get(
                queue_name=stage.reply_to, async_op=True, timeout_s=self._timeout_s
            )
            stage.asked = self._steps.put(
                Question(rows, min_version, stage.reply_to),
                weight=len(rows),
                queue_name=channels.QUESTIONS,
                async_op=True,
                timeout_s=self._timeout_s,
            )

    def _await_decision(self, stage: _Stage) -> Decision:
        with self._clock.phase("wait for decisions"):
            stage.asked.wait()
            decision: Decision = stage.answer.wait()
        return decision

    def _hand_over(self, complete: list[Trajectory]) -> None:
        with self._clock.phase("hand over"):
            self._sent += [
                self._trajectories.put(
                    trajectory, weight=len(trajectory), async_op=True, timeout_s=self._timeout_s
                )
                for trajectory in complete
            ]

    def _confirm_handed_over(self) -> None:
        with self._clock.phase("hand over"):
            for put in self._sent:
                put.wait()
            self._sent.clear()
