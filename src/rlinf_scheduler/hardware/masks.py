"""Visibility variables: how the text of each kind is read and written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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
