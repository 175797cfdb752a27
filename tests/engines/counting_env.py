"""An environment whose states say where it is, and a policy that decides by them."""

from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from rlinf_scheduler.engines import Decisions


class Counting(gymnasium.Env):
    """Its state is its episode's number and the step in it; odd episodes terminate, even ones run out of time.

    The reward of a step is its number, 1 the first.
    """

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}
    action_space = Discrete(1000)

    def __init__(self, length=3, nested=False, render_mode=None):
        box = Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space = Dict({"state": box, "again": box}) if nested else box
        self.render_mode = render_mode
        self._length, self._nested = length, nested
        self._episode = self._step = -1
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._draw = self.np_random.integers(1 << 20)
        self._episode, self._step = self._episode + 1, 0
        return self._state(), {}

    def step(self, action):
        self._step += 1
        ended = self._step == self._length
        is_odd = self._episode % 2 == 1
        return self._state(), float(self._step), ended and is_odd, ended and not is_odd, {}

    def render(self):
        return np.full((32, 32, 3), self._step, np.uint8)

    def _state(self):
        state = np.array([self._episode, self._step, self._draw], np.float32)
        return {"state": state, "again": state} if self._nested else state


def decide(observations, version=0):
    """Decide: a state's value is ten times its episode and its step."""
    rows = observations.rows["state"] if isinstance(observations.rows, dict) else observations.rows
    values = 10 * rows[:, 0] + rows[:, 1]
    return Decisions(np.arange(len(rows)), {"values": values.astype(np.float32)}, version)
