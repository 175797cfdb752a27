"""The component `env`: steps real environments, asks the rollout what to do, hands trajectories to the actor."""

from __future__ import annotations

from dataclasses import dataclass

import channels
from phases import PhaseClock
from rlinf.scheduler import Worker
from rlinf.scheduler.comm import AsyncHandle
from settings import Settings
from simulation import Simulation
from trajectory import Decision, Question, Trajectory


@dataclass(frozen=True, slots=True)
class _Stage:
    """One part of a worker's environments, with at most one question in flight."""

    simulation: Simulation
    reply_to: str


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A question on its way, and the decision that will answer it."""

    question: AsyncHandle[None]
    decision: AsyncHandle[Decision]


class EnvWorker(Worker):
    """Steps its share of the environments, in `stages` parts: while one waits for decisions, another is stepped.

    Args:
        settings: of the training.
        stages: into how many parts the environments are divided, where there are as many.
    """

    def __init__(self, settings: Settings, stages: int) -> None:
        super().__init__()
        self._timeout_s = settings.timeout_s
        self._num_steps = settings.env.steps
        self._steps = self.connect_channel(channels.STEPS, timeout_s=self._timeout_s)
        self._trajectories = self.connect_channel(channels.TRAJECTORIES, timeout_s=self._timeout_s)
        stages = min(stages, settings.env.num_envs)
        self._stages = [self._stage(settings, stage, stages) for stage in range(stages)]
        self._sent: list[AsyncHandle[None]] = []
        self._clock = PhaseClock()

    def collect(self, min_version: int) -> None:
        """Step every environment `settings.env.steps` times and hand over what happened, to the last step.

        Args:
            min_version: the oldest weights that may choose the actions.
        """
        asked = [self._ask(stage, min_version) for stage in self._stages]
        for _ in range(self._num_steps):
            for index, stage in enumerate(self._stages):
                decision = self._await_decision(asked[index])
                with self._clock.phase("simulate"):
                    complete = stage.simulation.advance(decision)
                asked[index] = self._ask(stage, min_version)
                self._hand_over(complete)
        for stage, last in zip(self._stages, asked, strict=True):
            self._hand_over(stage.simulation.finish(self._await_decision(last)))
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

    def _ask(self, stage: _Stage, min_version: int) -> _InFlight:
        with self._clock.phase("ask"):
            rows = stage.simulation.rows()
            # The get goes first and waits in the channel: the decision comes without a further round trip.
            decision = self._steps.get(queue_name=stage.reply_to, async_op=True, timeout_s=self._timeout_s)
            question = self._steps.put(
                Question(rows, min_version, stage.reply_to),
                weight=len(rows),
                queue_name=channels.QUESTIONS,
                async_op=True,
                timeout_s=self._timeout_s,
            )
        return _InFlight(question, decision)

    def _await_decision(self, asked: _InFlight) -> Decision:
        with self._clock.phase("wait for decisions"):
            asked.question.wait()
            return asked.decision.wait()

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
