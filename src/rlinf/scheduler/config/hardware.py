"""The settings of declared hardware, by type."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class HardwareConfig(BaseModel):
    """What every declared piece of hardware says.

    Attributes:
        node_rank: the node that it is attached to.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    node_rank: Annotated[int, Field(ge=0)]


class RobotConfig(HardwareConfig):
    """A robot.

    Attributes:
        address: how its node reaches it, e.g. an IP address; "" where the worker knows.
    """

    address: str = ""


HARDWARE_TYPES: Mapping[str, type[HardwareConfig]] = MappingProxyType({"Robot": RobotConfig})
