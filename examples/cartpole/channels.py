"""The channels between the components, and what their queues are called."""

from __future__ import annotations

# env -> rollout: questions; rollout -> env: decisions, one queue a part of a worker's environments
STEPS = "steps"
QUESTIONS = "questions"
# env -> actor: trajectories, weighing as many as they have steps
TRAJECTORIES = "trajectories"

ALL = (STEPS, TRAJECTORIES)


def decisions_for(env_rank: int, stage: int) -> str:
    """The queue of `STEPS` that one part of the environments of one worker listens to."""
    return f"decisions:{env_rank}:{stage}"
