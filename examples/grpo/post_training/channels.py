"""The channels between the components."""

from __future__ import annotations

REQUESTS = "requests"  # driver -> rollout: one a wanted answer
ANSWERS = "answers"  # rollout -> reward: one by one, with the prompt as the group of the item
SCORED = "scored"  # reward -> inference: complete groups, weighing as many as they have tokens
GROUPS = "groups"  # inference -> actor: the same, with proximal log-probabilities

ALL = (REQUESTS, ANSWERS, SCORED, GROUPS)
