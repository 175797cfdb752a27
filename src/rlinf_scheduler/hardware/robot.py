"""`Robot`: a machine that its node reaches at an address."""

from __future__ import annotations

import socket
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rlinf_scheduler.hardware.kinds import HardwareConfig, HardwareType, WholeNumber


class RobotConfig(HardwareConfig):
    """The settings of a robot.

    Attributes:
        address: how its node reaches it, a host name or an IP address; "" where the worker knows.
        port: the TCP port that its controller listens on, where there is one.
        check: "tcp": before a launch that uses it, a TCP connection to `address` and `port` must succeed.
    """

    address: str = ""
    port: Annotated[WholeNumber, Field(ge=1, le=65535)] | None = None
    check: Literal["tcp", "none"] = "none"

    @model_validator(mode="after")
    def _has_what_is_checked(self) -> RobotConfig:
        missing = [name for name in ("address", "port") if not getattr(self, name)]
        if self.check == "tcp" and missing:
            message = f"`check: tcp` connects to the robot: {' and '.join(missing)} must be given"
            raise ValueError(message)
        return self


class Robot(HardwareType):
    """A robot. Its worker finds the `RobotConfig` in `self.hardware`."""

    name = "Robot"
    config_model = RobotConfig

    def check(self, config: Any, timeout_s: float) -> None:
        """Connect to the robot, if its settings ask for it.

        Raises:
            OSError: nobody accepts a connection there in time.
        """
        if config.check == "tcp":
            with socket.create_connection((config.address, config.port), timeout=timeout_s):
                pass

    def address(self, config: Any) -> str:
        """Host and, if it is given, port; "" without a host."""
        has_both = config.address and config.port
        return f"{config.address}:{config.port}" if has_both else str(config.address)
