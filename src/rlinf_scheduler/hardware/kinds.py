"""`HardwareType`: what a kind of declared hardware, such as a robot, brings along."""

from __future__ import annotations

from collections.abc import Hashable
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

    Subclass it, set the class variables, and override what differs.

    Attributes:
        name: what `hardware.type` says in a config, e.g. "Robot".
        config_model: the settings of one piece. Missing and unknown keys and wrong values become errors that name the
            path in the user's file.
        fills_in: a setting that a config leaves out is taken from the variable of its node that is named as it is, in
            capitals; ranks of nodes are not.
        identifiers: settings by whose variables pieces are found on a node for which a config lists none.
    """

    name: ClassVar[str] = ""
    config_model: ClassVar[type[HardwareConfig]] = HardwareConfig
    fills_in: ClassVar[bool] = False
    identifiers: ClassVar[tuple[str, ...]] = ()

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

    @property
    def fillable(self) -> tuple[str, ...]:
        """The settings that are taken from a node's variables where a config leaves them out."""
        names = self.config_model.model_fields if self.fills_in else ()
        return tuple(name for name in names if not name.endswith("node_rank"))

    def at_node(self, config: Any) -> Any:
        """The settings with what only the node itself can say; in the worker's process, after `check`.

        By default they stay as they are.
        """
        return config

    def identity(self, config: Any) -> Hashable:
        """What no two pieces have in common, such as an address; None where that is not known.

        A config that names a piece twice, with other settings, is told so.
        """
        del config
        return None

    def address(self, config: Any) -> str:
        """Where a piece is reached, for errors; "" where it has no address."""
        return str(getattr(config, "address", ""))
