"""Settings of known robots as RLinf has them: dataclasses, with the fields of our own models."""

from __future__ import annotations

from dataclasses import field, make_dataclass
from typing import Any

from rlinf.scheduler.hardware.hardware import CONFIG_CLASSES, INFO_CLASSES, HardwareConfig
from rlinf_scheduler.hardware.kinds import HardwareConfig as CoreConfig


def record_of(name: str, model: type[CoreConfig], kind: str) -> Any:
    """A dataclass of that name with the fields of the model, which checks them; it stands for the kind's settings."""
    own = [
        (key, about.annotation, field(default=about.default))
        for key, about in model.model_fields.items()
        if key != "node_rank"
    ]

    def check(self: Any) -> None:
        checked = model.model_validate(vars(self))
        for key in model.model_fields:
            setattr(self, key, getattr(checked, key))

    record = make_dataclass(name, own, bases=(HardwareConfig,), namespace={"__post_init__": check})
    CONFIG_CLASSES[kind] = record
    return record


def shows(kind: str, info: type[Any]) -> None:
    """Show a worker the pieces of a kind by such a record."""
    INFO_CLASSES[kind] = info
