"""`Vendor`: what has to be known of a maker of accelerators to count its devices and to show a process some."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rlinf_scheduler.hardware.devices import Tool

# What some container runtimes and batch systems leave in a variable on a machine without devices.
NO_DEVICES = "NoDevFiles"


class Mask(Protocol):
    """How a visibility variable is written."""

    def read(self, text: str) -> tuple[str, ...] | None:
        """The devices that a text makes visible, in order; None where it leaves all of them visible."""
        ...

    def write(self, names: Sequence[str]) -> str:
        """The text that makes these devices visible, and no other; without any, the text that hides all."""
        ...


@dataclass(frozen=True, slots=True)
class ListMask:
    """Devices with commas between them: indices, UUIDs, MIG ids.

    An index below 0 ends the list, as in CUDA: "0,2,-1,1" shows devices 0 and 2 (CUDA C++ Programming Guide, "CUDA
    Environment Variables"). An empty text hides every device.

    Attributes:
        hide_all: what to write to hide every device.
    """

    hide_all: str = ""

    def read(self, text: str) -> tuple[str, ...]:
        """The devices that a text makes visible, in order; None where it leaves all of them visible."""
        names: list[str] = []
        for name in map(str.strip, text.split(",")):
            if not name or name.startswith("-") or name == NO_DEVICES:
                break
            names.append(name)
        return tuple(names)

    def write(self, names: Sequence[str]) -> str:
        """The text that makes these devices visible, and no other; without any, the text that hides all."""
        return ",".join(names) or self.hide_all


@dataclass(frozen=True, slots=True)
class DigitsMask:
    """Indices with commas and nothing else between them; the first other character ends the list.

    "1, 2,3" shows device 1 only (CANN, "ASCEND_RT_VISIBLE_DEVICES").

    Attributes:
        hide_all: what to write to hide every device.
    """

    hide_all: str = "-1"

    def read(self, text: str) -> tuple[str, ...]:
        """The devices that a text makes visible, in order; None where it leaves all of them visible."""
        match = re.match(r"\d+(?:,\d+)*", text, re.ASCII)
        return tuple(match[0].split(",")) if match else ()

    def write(self, names: Sequence[str]) -> str:
        """The text that makes these devices visible, and no other; without any, the text that hides all."""
        return ",".join(names) or self.hide_all


@dataclass(frozen=True, slots=True)
class SelectorMask:
    """`backend:device,device` terms with semicolons between them, as in `ONEAPI_DEVICE_SELECTOR`.

    The grammar: DPC++, "Environment Variables". A device is an index, an index with a sub-device ("0.1"), a kind
    ("gpu", "cpu") or "*". Terms that start with "!" take devices away again; what such a text leaves is not known here.

    Attributes:
        backend: the backend whose devices count, e.g. "level_zero".
        kind: what its devices are, e.g. "gpu".
    """

    backend: str
    kind: str = "gpu"

    def read(self, text: str) -> tuple[str, ...] | None:
        """The devices that a text makes visible, in order; None where it leaves all of them visible."""
        if not text.strip() or text.strip() == NO_DEVICES:
            return ()
        terms = [term.strip().lower() for term in text.split(";") if term.strip()]
        names: dict[str, None] = {}
        for term in terms:
            backend, colon, devices = term.rpartition(":")
            if term.startswith("!"):
                return None
            if colon and backend not in (self.backend, "*"):
                continue
            for device in map(str.strip, devices.split(",")):
                if device in ("*", self.kind):
                    return None
                if re.fullmatch(r"\d+(\.\d+)*", device, re.ASCII):
                    names[device] = None
        return tuple(names)

    def write(self, names: Sequence[str]) -> str:
        """The text that makes these devices visible, and no other; without any, the text that hides all."""
        return f"{self.backend}:{','.join(names)}" if names else "*:cpu"


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
