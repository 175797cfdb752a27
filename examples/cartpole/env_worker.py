"""The component `env`: steps real environments, asks the rollout what to do, hands trajectories to the actor."""

from __future__ import annotations

import channels
from rlinf.scheduler import Worker
from rlinf_scheduler.comm import AsyncHandle
from settings import Settings
from simulation import Simulation
from trajectory import Decision, Question, Trajectory


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
        self._questions = self.connect_channel(channels.QUESTIONS, timeout_s=self._timeout_s)
        self._trajectories = self.connect_channel(channels.TRAJECTORIES, timeout_s=self._timeout_s)
        stages = min(stages, settings.env.num_envs)
        self._stages = [self._simulation(settings, stage, stages) for stage in range(stages)]
        self._sent: list[AsyncHandle[None]] = []

    def collect(self, min_version: int) -> None:
        """Step every environment `settings.env.steps` times and hand over what happened, to the last step.

        Args:
            min_version: the oldest weights that may choose the actions.
        """
        asked = [self._ask(simulation, min_version) for simulation in self._stages]
        for _ in range(self._num_steps):
            for index, simulation in enumerate(self._stages):
                decision = asked[index].wait()
                with self.timer("simulate"):
                    complete = simulation.advance(decision)
                asked[index] = self._ask(simulation, min_version)
                self._hand_over(complete)
        for simulation, last in zip(self._stages, asked, strict=True):
            self._hand_over(simulation.finish(last.wait()))
        self._confirm_handed_over()

    def _simulation(self, settings: Settings, stage: int, stages: int) -> Simulation:
        total = settings.env.num_envs
        first, end = stage * total // stages, (stage + 1) * total // stages
        return Simulation(
            settings.env.id,
            num_envs=end - first,
            capacity=settings.env.steps,
            # Far apart for different trainings, and the same environments however they are divided.
            seed=settings.seed * 1_000_003 + self.rank * total + first,
        )

    def _ask(self, simulation: Simulation, min_version: int) -> AsyncHandle[Decision]:
        with self.timer("ask"):
            rows = simulation.rows()
            question = Question(rows, min_version)
            return self._questions.ask(question, len(rows), async_op=True, timeout_s=self._timeout_s)

    def _hand_over(self, complete: list[Trajectory]) -> None:
        self._sent += [
            self._trajectories.put(
                trajectory,
                weight=len(trajectory),
                version=trajectory.version,
                async_op=True,
                timeout_s=self._timeout_s,
            )
            for trajectory in complete
        ]

    def _confirm_handed_over(self) -> None:
        for put in self._sent:
            put.wait()
        self._sent.clear()
