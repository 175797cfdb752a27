"""A hardware type whose settings are those of a dataclass of a program's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

from pydantic import ConfigDict, create_model

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.hardware.kinds import HardwareConfig, HardwareType
from rlinf_scheduler.hardware.registry import hardware_type


def dataclass_type(
    name: str, settings: Any, at_node: Callable[[Any], Any], view: Callable[[Any], Any]
) -> HardwareType:
    """Return a hardware type for `register_hardware`.

    Args:
        name: what `hardware.type` says in a config.
        settings: the dataclass, which has a `node_rank`.
        at_node: what the worker that was given a piece is told of it, made on its node.
        view: what the worker is shown, made of that.

    Raises:
        ConfigError: `settings` is no dataclass.
    """
    if not is_dataclass(settings):
        raise ConfigError(f"the settings of '{name}' are {settings!r}; they must be a dataclass")
    hints = get_type_hints(settings)
    about = ConfigDict(strict=False, arbitrary_types_allowed=True)
    # The model is made in each process: its name finds it there.
    reduce = {"__reduce__": lambda self: (_loaded, (name, dict(self)))}
    base = type(name, (HardwareConfig,), {"model_config": about, **reduce})
    own: dict[str, Any] = {}
    for each in fields(settings):
        if each.name != "node_rank":
            default = each.default if each.default is not MISSING else ...
            if each.default_factory is not MISSING:
                default = each.default_factory()
            own[each.name] = (hints[each.name], default)
    members = {
        "name": name,
        "config_model": create_model(f"{name}Settings", __base__=base, **own),
        "at_node": lambda _, config: at_node(config),
        "view": lambda _, config: view(config),
    }
    kind: type[HardwareType] = type(name, (HardwareType,), members)
    return kind()


def _loaded(name: str, values: Mapping[str, Any]) -> Any:
    """Return the settings that another process has sent."""
    return hardware_type(name).config_model.model_validate(dict(values))
