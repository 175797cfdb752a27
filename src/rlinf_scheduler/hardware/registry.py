"""The hardware types that a config may name."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.hardware.plugins import plugin_names, plugin_type
from rlinf_scheduler.wording import did_you_mean, list_names

if TYPE_CHECKING:
    from rlinf_scheduler.hardware.kinds import HardwareType

ROBOT = "Robot"


def hardware_type(name: str) -> HardwareType:
    """The hardware type of that name: one that comes with this library, or of an installed package.

    Raises:
        ConfigError: there is none; or a package that has it cannot be loaded, or gives it a name that is taken.
    """
    found = plugin_type(name)
    if name == ROBOT:
        if found is not None:
            problem = (
                f"the hardware type '{name}' comes with this library, and an installed package has it too"
            )
            raise ConfigError(problem, hint="uninstall that package, or have it choose another name")
        return _robot()
    if found is not None:
        return found
    known = hardware_names()
    raise ConfigError(
        f"there is no hardware type '{name}'; there are: {list_names(known)}",
        hint=did_you_mean(name, known) or "a package that adds the type may not be installed here",
    )


def hardware_names() -> tuple[str, ...]:
    """The names that `hardware.type` may have: the built-in types first, then those of installed packages."""
    return (ROBOT, *(name for name in plugin_names() if name != ROBOT))


@cache
def _robot() -> HardwareType:
    # Loads pydantic: only for who declares a robot, or was given one.
    from rlinf_scheduler.hardware.robot import Robot  # noqa: PLC0415

    return Robot()
