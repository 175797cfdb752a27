"""`HardwareType`: what a kind of declared hardware, such as a robot, brings along."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from rlinf_scheduler.checks import whole_number


def _read_digits(value: Any) -> Any:
    number = whole_number(value, from_text=True)
    return value if number is None else number


# A whole number in a config, or text that is one.
WholeNumber = Annotated[int, BeforeValidator(_read_digits)]


class HardwareConfig(BaseModel):
    """What every declared piece of hardware says. A type's own settings are fields of a subclass.

    Attributes:
        node_rank: the node that it is attached to.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    node_rank: Annotated[WholeNumber, Field(ge=0)]


class HardwareType:
    """A kind of hardware that node groups can declare.

    Subclass it, set the two class variables, and override what differs.

    Attributes:
        name: what `hardware.type` says in a config, e.g. "Robot".
        config_model: the settings of one piece. Missing and unknown keys and wrong values become errors that name the
            path in the user's file.
    """

    name: ClassVar[str] = ""
    config_model: ClassVar[type[HardwareConfig]] = HardwareConfig

    def check(self, config: Any, timeout_s: float) -> None:
        """Make sure that a piece can be used. It runs before a launch, for every piece that the launch uses.

        By default there is nothing to check.

        Args:
            config: the piece's settings, a `config_model`.
            timeout_s: how long it may take.

        Raises:
            HardwareUnreachable: it cannot be reached. An `OSError`, such as of a socket, is taken for the same.
        """

    def view(self, config: Any) -> object:
        """What a worker finds in `self.hardware` for a piece that it was given.

        It is made in the driver and travels to the worker by pickle: open connections in the worker.

        Args:
            config: the piece's settings, a `config_model`.

        Returns:
            By default the settings themselves.
        """
        view: object = config
        return view

    def address(self, config: Any) -> str:
        """Where a piece is reached, for errors; "" where it has no address."""
        return str(getattr(config, "address", ""))
