"""`Vendor`: what has to be known of a maker of accelerators to count its devices and to show a process some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlinf_scheduler.hardware.devices import Tool
from rlinf_scheduler.hardware.masks import ListMask, Mask


@dataclass(frozen=True, slots=True)
class Vendor:
    """One maker of accelerators.

    Attributes:
        name: as users and plans name it, e.g. "NVIDIA".
        ray_resource: the name under which Ray counts its devices.
        visibility_variable: the environment variable that says which devices a process sees.
        mask: how that variable is written.
        same_as: other variables that its programs read in the same way where that one is not set.
        applied_before: variables that a lower layer applies first: the visibility variable then counts, from 0,
            what those leave. They are never changed.
        tool: its command that lists devices; None where there is none whose output is stable.
        view: a command that lists the devices that a process with its environment sees, in that process's order.
        device_files: what its devices are called under /dev, as a pattern, or "": it tells vendors apart that
            Ray counts under one name.
        torch_type: what torch calls its devices, as in `torch.device("cuda:0")`; "" where that is not known.
    """

    name: str
    ray_resource: str
    visibility_variable: str
    mask: Mask = field(default_factory=ListMask)
    same_as: tuple[str, ...] = ()
    applied_before: tuple[str, ...] = ()
    tool: Tool | None = None
    view: Tool | None = None
    device_files: str = ""
    torch_type: str = ""

    @property
    def variables(self) -> tuple[str, ...]:
        """Every variable that has a say in which of its devices a process sees."""
        return (self.visibility_variable, *self.same_as, *self.applied_before)

    def read_mask(self, environment: Mapping[str, str]) -> tuple[str, ...] | None:
        """The devices that a process with these variables may use, in order; None: all that there are."""
        for variable in (self.visibility_variable, *self.same_as):
            if variable in environment:
                return self.mask.read(environment[variable])
        return None

    def mask_settings(self, names: Sequence[str]) -> dict[str, str]:
        """The variables that make a process see these devices and no other, in this order."""
        return {self.visibility_variable: self.mask.write(names)}
