"""Franka arms, where RLinf's programs look for them."""

from rlinf.scheduler.hardware.robots import FrankaConfig as FrankaConfig
from rlinf.scheduler.hardware.robots import FrankaHWInfo as FrankaHWInfo
