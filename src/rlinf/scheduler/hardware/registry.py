"""The hardware types that a config may name."""

from __future__ import annotations

from rlinf.scheduler.errors import ConfigError
from rlinf.scheduler.hardware.hardware_type import HardwareType
from rlinf.scheduler.hardware.plugins import plugin_names, plugin_type
from rlinf.scheduler.hardware.robot import Robot
from rlinf.scheduler.wording import did_you_mean, list_names

_BUILT_IN: dict[str, HardwareType] = {Robot.name: Robot()}


def hardware_type(name: str) -> HardwareType:
    """The hardware type of that name: one that comes with this library, or of an installed package.

    Raises:
        ConfigError: there is none; or a package that has it cannot be loaded, or gives it a name that is taken.
    """
    found = plugin_type(name)
    if name in _BUILT_IN:
        if found is not None:
            problem = (
                f"the hardware type '{name}' comes with this library, and an installed package has it too"
            )
            raise ConfigError(problem, hint="uninstall that package, or have it choose another name")
        return _BUILT_IN[name]
    if found is not None:
        return found
    known = hardware_names()
    raise ConfigError(
        f"there is no hardware type '{name}'; there are: {list_names(known)}",
        hint=did_you_mean(name, known) or "a package that adds the type may not be installed here",
    )


def hardware_names() -> tuple[str, ...]:
    """The names that `hardware.type` may have: the built-in types first, then those of installed packages."""
    return (*_BUILT_IN, *(name for name in plugin_names() if name not in _BUILT_IN))
