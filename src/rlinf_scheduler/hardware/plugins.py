"""Hardware types and vendors of other packages, found by the entry-point group `rlinf.hardware`.

An entry point is named as the type or vendor that it stands for, so only those that somebody asks for are loaded.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.hardware.vendor import Vendor

if TYPE_CHECKING:
    from rlinf_scheduler.hardware.kinds import HardwareType

ENTRY_POINT_GROUP = "rlinf.hardware"


def plugin_names() -> tuple[str, ...]:
    """The names that installed packages offer, of types and vendors; nothing is loaded."""
    return tuple(sorted({entry.name for entry in _entries()}))


def plugin_type(name: str) -> HardwareType | None:
    """The hardware type of that name from an installed package; None where no package has it.

    Raises:
        ConfigError: the package cannot be loaded, or two have the name; the text names the packages.
    """
    found = _find(name)
    return None if isinstance(found, Vendor) else found


def plugin_vendor(name: str) -> Vendor | None:
    """The vendor of that name, in capitals or not, from an installed package; None where no package has it.

    Raises:
        ConfigError: as above.
    """
    named = next((entry.name for entry in _entries() if entry.name.lower() == name.lower()), None)
    found = None if named is None else _find(named)
    return found if isinstance(found, Vendor) else None


def plugin_vendors() -> tuple[Vendor, ...]:
    """The vendors of all installed packages. Every entry point is loaded.

    Raises:
        ConfigError: as above.
    """
    found = (_find(name) for name in plugin_names())
    return tuple(vendor for vendor in found if isinstance(vendor, Vendor))


@cache
def _entries() -> tuple[EntryPoint, ...]:
    # A package that is on the path twice is still one package.
    return tuple({(e.name, e.value, _package(e)): e for e in entry_points(group=ENTRY_POINT_GROUP)}.values())


@cache
def _find(name: str) -> HardwareType | Vendor | None:
    entries = [entry for entry in _entries() if entry.name == name]
    if len(entries) > 1:
        packages = " and ".join(sorted(_package(entry) for entry in entries))
        raise ConfigError(
            f"the hardware '{name}' is in several packages, {packages}", hint="uninstall one of them"
        )
    return _load(entries[0]) if entries else None


def _load(entry: EntryPoint) -> HardwareType | Vendor:
    # Loads pydantic: only where some package adds hardware.
    from rlinf_scheduler.hardware.kinds import HardwareConfig, HardwareType  # noqa: PLC0415

    try:
        loaded = entry.load()
        found = loaded() if isinstance(loaded, type) else loaded
    except (Exception, SystemExit) as error:
        raise _unusable(entry, f"{type(error).__name__}: {error}") from error
    if not isinstance(found, (HardwareType, Vendor)):
        raise _unusable(entry, f"{entry.value} is neither a HardwareType nor a Vendor")
    if found.name != entry.name:
        raise _unusable(entry, f"{entry.value} is named '{found.name}', its entry point '{entry.name}'")
    if isinstance(found, HardwareType) and not (
        isinstance(found.config_model, type) and issubclass(found.config_model, HardwareConfig)
    ):
        raise _unusable(entry, f"the config_model of {entry.value} is no subclass of HardwareConfig")
    return found


def _unusable(entry: EntryPoint, problem: str) -> ConfigError:
    return ConfigError(f"the hardware '{entry.name}' of package {_package(entry)} cannot be used: {problem}")


def _package(entry: EntryPoint) -> str:
    return f"'{entry.dist.name} {entry.dist.version}'" if entry.dist else "'(unknown)'"
