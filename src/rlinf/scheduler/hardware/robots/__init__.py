"""The robots of RLinf's programs: their settings, and how a worker is shown them."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.hardware.hardware import CONFIG_CLASSES, INFO_CLASSES, HardwareConfig, HardwareInfo
from rlinf_scheduler.hardware import robots

__all__ = [
    "DOSW1HWConfig",
    "DOSW1HWInfo",
    "DualFrankaConfig",
    "DualFrankaHWInfo",
    "FrankaConfig",
    "FrankaHWInfo",
    "GimArmConfig",
    "GimArmHWInfo",
    "Turtle2Config",
    "Turtle2HWInfo",
]


def _record_of(name: str, model: Any, kind: str) -> Any:
    """Return a dataclass with the fields of a model, which checks them; it stands for the kind's settings."""
    own = [
        (key, about.annotation, field(default=about.default))
        for key, about in model.model_fields.items()
        if key != "node_rank"
    ]

    def check(self: Any) -> None:
        checked = model.model_validate(vars(self))
        for key in model.model_fields:
            setattr(self, key, getattr(checked, key))

    members = {"__post_init__": check, "__module__": __name__}
    record = CONFIG_CLASSES[kind] = make_dataclass(name, own, bases=(HardwareConfig,), namespace=members)
    return record


if TYPE_CHECKING:
    from rlinf_scheduler.hardware.robots import Dosw1Config as DOSW1HWConfig
    from rlinf_scheduler.hardware.robots import (
        DualFrankaConfig,
        FrankaConfig,
        GimArmConfig,
        Turtle2Config,
    )
else:
    DOSW1HWConfig = _record_of("DOSW1HWConfig", robots.Dosw1Config, "DOSW1")
    DualFrankaConfig = _record_of("DualFrankaConfig", robots.DualFrankaConfig, "DualFranka")
    FrankaConfig = _record_of("FrankaConfig", robots.FrankaConfig, "Franka")
    GimArmConfig = _record_of("GimArmConfig", robots.GimArmConfig, "GimArm")
    Turtle2Config = _record_of("Turtle2Config", robots.Turtle2Config, "Turtle2")


@dataclass
class DOSW1HWInfo(HardwareInfo):
    """A DOS-W1, a robot with two arms, as a worker is shown it."""

    config: DOSW1HWConfig


@dataclass
class DualFrankaHWInfo(HardwareInfo):
    """Two Franka arms that are one robot."""

    config: DualFrankaConfig


@dataclass
class FrankaHWInfo(HardwareInfo):
    """A Franka arm."""

    config: FrankaConfig


@dataclass
class GimArmHWInfo(HardwareInfo):
    """A GimArm."""

    config: GimArmConfig


@dataclass
class Turtle2HWInfo(HardwareInfo):
    """A Turtle2."""

    config: Turtle2Config


INFO_CLASSES.update(
    DOSW1=DOSW1HWInfo,
    DualFranka=DualFrankaHWInfo,
    Franka=FrankaHWInfo,
    GimArm=GimArmHWInfo,
    Turtle2=Turtle2HWInfo,
)
