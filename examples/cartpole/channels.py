"""The channels between the components."""

from __future__ import annotations

# env asks, rollout answers
QUESTIONS = "questions"
# env -> actor: trajectories, weighing as many as they have steps
TRAJECTORIES = "trajectories"

ALL = (QUESTIONS, TRAJECTORIES)
