"""Hardware as RLinf's programs see and declare it, upon our hardware types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, ClassVar, TypeVar, get_type_hints

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.hardware.registry import hardware_names, hardware_type, register_hardware

T = TypeVar("T")


@dataclass
class HardwareConfig:
    """What every declared piece of hardware says: the node that it is attached to."""

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
    """The settings of a piece as RLinf's record of them, where it has one."""
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
        """The pieces of a node; None where there are none."""
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
    if name not in CONFIG_CLASSES:
        register_hardware(_kind_of(name, config)())
    CONFIG_CLASSES[name] = config


def _kind_of(name: str, config: Any) -> Any:
    """A hardware type of ours whose settings are those of a dataclass."""
    if not is_dataclass(config):
        raise ConfigError(f"the settings of '{name}' are {config!r}; they must be a dataclass")
    # Loads pydantic: only where a program declares a type.
    from pydantic import ConfigDict, create_model  # noqa: PLC0415

    from rlinf_scheduler.hardware.kinds import HardwareConfig as CoreConfig  # noqa: PLC0415
    from rlinf_scheduler.hardware.kinds import HardwareType  # noqa: PLC0415

    hints = get_type_hints(config)
    about = ConfigDict(strict=False, arbitrary_types_allowed=True)
    # The model is made in each process: its name finds it there.
    reduce = {"__reduce__": lambda self: (_settings, (name, dict(self)))}
    base = type(name, (CoreConfig,), {"model_config": about, **reduce})
    settings: dict[str, Any] = {}
    for each in fields(config):
        if each.name != "node_rank":
            default = each.default if each.default is not MISSING else ...
            if each.default_factory is not MISSING:
                default = each.default_factory()
            settings[each.name] = (hints[each.name], default)
    model: Any = create_model(f"{name}Settings", __base__=base, **settings)

    class Kind(HardwareType):
        """That type."""

        def at_node(self, config: Any) -> Any:
            """What the program's class tells of the piece, on its node."""
            policy = _policies.get(name)
            found = policy and policy.enumerate(config.node_rank, [config_of(name, config)])
            return found.infos[0] if found and found.infos else config

        def view(self, config: Any) -> Any:
            """What the worker is shown."""
            return config_of(name, config)

    kind: Any = Kind
    kind.name, kind.config_model = name, model
    return kind


def _settings(name: str, values: Mapping[str, Any]) -> Any:
    """The settings that another process has sent."""
    return hardware_type(name).config_model.model_validate(dict(values))
