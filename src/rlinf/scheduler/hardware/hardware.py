"""Hardware as RLinf's programs see and declare it, upon our hardware types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from rlinf_scheduler.hardware.registry import hardware_names, hardware_type, register_hardware

T = TypeVar("T")


@dataclass
class HardwareConfig:
    """The setting of every declared piece of hardware: the node that it is attached to."""

    node_rank: int


@dataclass
class HardwareInfo:
    """One piece of hardware: its type, and its model."""

    type: str
    model: str


@dataclass
class HardwareResource:
    """The pieces of one type that a node has."""

    type: str
    infos: list[HardwareInfo]

    @property
    def count(self) -> int:
        """How many."""
        return len(self.infos)


# The records of a type's pieces, by the type: what a worker is shown, and its settings.
INFO_CLASSES: dict[str, type[Any]] = {}
CONFIG_CLASSES: dict[str, type[Any]] = {}


def config_of(type_name: str, settings: Any) -> Any:
    """Return the settings of a piece as RLinf's record of them, where it has one."""
    record = CONFIG_CLASSES.get(type_name)
    if record is None or isinstance(settings, (record, HardwareInfo)):
        return settings
    return record(**{each.name: getattr(settings, each.name) for each in fields(record)})


@dataclass
class AnyInfo(HardwareInfo):
    """A piece of hardware of a type that RLinf does not have, with its settings."""

    config: Any


class Hardware:
    """A kind of hardware of a program's own, as RLinf has them declared: a subclass is registered, and enumerates.

    `enumerate` runs in the process of a worker that was given a piece, and tells of that piece alone.
    """

    HW_TYPE: ClassVar[str] = ""
    DEFAULT_HW_TYPE: ClassVar[str] = "Accelerator"

    @classmethod
    def register(cls, is_default_hw: bool = False) -> Callable[[type[T]], type[T]]:
        """Have a subclass asked for the pieces of its type; for the use as a decorator."""
        del is_default_hw  # accelerators are

        def registered(policy: type[T]) -> type[T]:
            _policies[getattr(policy, "HW_TYPE", "")] = policy
            return policy

        return registered

    @classmethod
    def enumerate(cls, node_rank: int, configs: list[Any] | None = None) -> HardwareResource | None:
        """Return the pieces of a node; None where there are none."""
        raise NotImplementedError


_policies: dict[str, Any] = {}


@dataclass
class NodeHardwareConfig:
    """The `hardware:` of a node group.

    Raises:
        ConfigError: there is no such type.
    """

    type: str
    configs: list[Any]

    def __post_init__(self) -> None:
        self.type = str(self.type)
        if self.type not in hardware_names():
            hardware_type(self.type)  # raises: it says which there are
        self.configs = [self._config(each) for each in self.configs]

    def _config(self, entry: Any) -> Any:
        if not isinstance(entry, Mapping) and not hasattr(entry, "keys"):
            return entry
        model = hardware_type(self.type).config_model
        return config_of(self.type, model.model_validate(dict(entry)))

    @classmethod
    def register_hardware_config(cls, type: str) -> Callable[[T], T]:
        """Let configs declare hardware of a type with the settings of a dataclass; for the use as a decorator."""

        def registered(config: T) -> T:
            _declare(type, config)
            return config

        return registered


def _declare(name: str, config: Any) -> None:
    def at_node(settings: Any) -> Any:
        policy = _policies.get(name)
        found = policy and policy.enumerate(settings.node_rank, [config_of(name, settings)])
        return found.infos[0] if found and found.infos else settings

    if name not in CONFIG_CLASSES:
        # Loads pydantic: only where a program declares a type.
        from rlinf_scheduler.hardware.dataclass_type import dataclass_type  # noqa: PLC0415

        register_hardware(dataclass_type(name, config, at_node, lambda shown: config_of(name, shown)))
    CONFIG_CLASSES[name] = config
