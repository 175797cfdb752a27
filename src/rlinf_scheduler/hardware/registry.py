"""The hardware types that a config may name."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.extension import load_extension
from rlinf_scheduler.hardware.plugins import plugin_names, plugin_type
from rlinf_scheduler.wording import did_you_mean, list_names

if TYPE_CHECKING:
    from rlinf_scheduler.hardware.kinds import HardwareType

ROBOT = "Robot"
# The robots of `hardware.robots`, which loads pydantic: only for a config that names one, or a rank that was given one.
KNOWN_ROBOTS = ("Franka", "DualFranka", "DOSW1", "GimArm", "Turtle2")
_BUILT_IN = (ROBOT, *KNOWN_ROBOTS)
# The variables of a node from which their settings are filled in.
ROBOT_VARIABLES = (
    "ROBOT_IP",
    "CAMERA_SERIALS",
    "CAMERA_TYPE",
    "GRIPPER_TYPE",
    "GRIPPER_CONNECTION",
    "DISABLE_VALIDATE",
    *(
        f"{part}_{setting}"
        for part in ("LEFT", "RIGHT")
        for setting in ("ROBOT_IP", "CAMERA_SERIALS", "CAMERA_TYPE", "GRIPPER_TYPE", "GRIPPER_CONNECTION")
    ),
    "BASE_CAMERA_SERIALS",
    "BASE_CAMERA_TYPE",
    "ROBOT_URL",
    "LEFT_ARM_PORT",
    "RIGHT_ARM_PORT",
    "LEFT_LEAD_PORT",
    "RIGHT_LEAD_PORT",
    "CAN_INTERFACE",
    "ARM_VARIANT",
    "ENABLE_GRIPPER",
)
# What the program has added, by name.
_registered: dict[str, HardwareType] = {}


def register_hardware(kind: HardwareType) -> None:
    """Add a hardware type of the program's own in this process, beside those of installed packages.

    The module that `RLINF_EXT_MODULE` names is imported by every process of a job: there it is known to all of them.

    Raises:
        ConfigError: the name is taken by another type.
    """
    there = _registered.get(kind.name)
    if kind.name in _BUILT_IN or (there is not None and type(there) is not type(kind)):
        raise ConfigError(f"the hardware type '{kind.name}' is there already; choose another name")
    _registered[kind.name] = kind


def hardware_type(name: str) -> HardwareType:
    """The hardware type of that name: one that comes with this library, or of an installed package.

    Raises:
        ConfigError: there is none; or a package that has it cannot be loaded, or gives it a name that is taken.
    """
    found = plugin_type(name) or _registered.get(name)
    if name in _BUILT_IN:
        if found is not None:
            problem = (
                f"the hardware type '{name}' comes with this library, and an installed package has it too"
            )
            raise ConfigError(problem, hint="uninstall that package, or have it choose another name")
        return _built_in(name)
    if found is None:
        load_extension()
        found = _registered.get(name)
    if found is not None:
        return found
    known = hardware_names()
    raise ConfigError(
        f"there is no hardware type '{name}'; there are: {list_names(known)}",
        hint=did_you_mean(name, known) or "a package that adds the type may not be installed here",
    )


def hardware_names() -> tuple[str, ...]:
    """The names that `hardware.type` may have: the built-in types first, then those of installed packages."""
    return tuple(dict.fromkeys((*_BUILT_IN, *plugin_names(), *sorted(_registered))))


def hardware_variables() -> tuple[str, ...]:
    """The variables of a node that may say something of hardware, of every type that is known here."""
    others = [*_registered.values(), *filter(None, map(plugin_type, plugin_names()))]
    return (*ROBOT_VARIABLES, *(name.upper() for kind in others for name in kind.fillable))


@cache
def _built_in(name: str) -> HardwareType:
    # Loads pydantic: only for who declares a robot, or was given one.
    if name == ROBOT:
        kind: HardwareType = import_module("rlinf_scheduler.hardware.robot").Robot()
    else:
        kind = import_module("rlinf_scheduler.hardware.robots").ROBOTS[name]
    return kind
