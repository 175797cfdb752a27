"""The channels between the components."""

from __future__ import annotations

PROMPTS = "prompts"  # driver -> reward: prompts that may be answered
REQUESTS = "requests"  # reward -> rollout: questions, one a wanted answer
SCORED = "scored"  # reward -> inference: complete groups, weighing as many as they have tokens
GROUPS = "groups"  # inference -> actor: the same, with proximal log-probabilities

ALL = (PROMPTS, REQUESTS, SCORED, GROUPS)
