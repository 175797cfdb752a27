"""Placements by properties: what a component's devices must be, and beside what, in the place of their numbers."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.planning.node_groups import CLUSTER_GROUP
from rlinf_scheduler.planning.topology import Node
from rlinf_scheduler.wording import counted

GIGABYTE = 10**9

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_BOUND = re.compile(r"\s*(?P<sign>>=|<=|==|>|<|)\s*(?P<number>\d{1,9}(?:\.\d{1,6})?)\s*", re.ASCII)
_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Bound:
    """What a number must be: `>=80`; a number without a sign is the least."""

    sign: str
    number: float

    @classmethod
    def parse(cls, text: str) -> Bound:
        """Return the bound that a text stands for.

        Raises:
            ConfigError: it stands for none.

        >>> str(Bound.parse(">= 80")), str(Bound.parse("8")), Bound.parse("<40").holds_for(24)
        ('>=80', '>=8', True)
        """
        match = _BOUND.fullmatch(text)
        if match is None:
            signs = ", ".join(_COMPARISONS)
            raise ConfigError(f"this must be a number, or one behind {signs}, not '{text}'")
        return cls(match["sign"] or ">=", float(match["number"]))

    def holds_for(self, value: float) -> bool:
        """Return whether a number is within it."""
        return _COMPARISONS[self.sign](value, self.number)

    def __str__(self) -> str:
        return f"{self.sign}{self.number:g}"


@dataclass(frozen=True, slots=True)
class Properties:
    """What a node must be.

    Attributes:
        gpu: words of its accelerators' model: "H100" is one of those of "NVIDIA H100 80GB HBM3".
        vendor: its accelerators' vendor, such as "NVIDIA".
        memory_gb: the memory of each of its accelerators, in units of 10**9 bytes.
        accelerators: how many accelerators it has.
        label: labels that the cluster has given it, by name.
    """

    gpu: str = ""
    vendor: str = ""
    memory_gb: Bound | None = None
    accelerators: Bound | None = None
    label: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return self != _NO_PROPERTIES

    def __str__(self) -> str:
        said = [
            f"{name} {value}"
            for name in ("gpu", "vendor", "memory_gb", "accelerators")
            if (value := getattr(self, name))
        ]
        return ", ".join([*said, *(f"label {name}={value}" for name, value in self.label)])

    def misfits(self, node: Node) -> list[str]:
        """Return what a node is, in which it does not fit; empty where it fits."""
        return list(self._misfits(node))

    def _misfits(self, node: Node) -> Iterator[str]:
        model, vendor, memory = node.accelerator_model, node.accelerator_type, node.memory_bytes
        if (self.gpu or self.vendor or self.memory_gb) and not node.num_accelerators:
            yield "it has no accelerators"
        else:
            if self.gpu and not _is_said(self.gpu, model):
                yield (
                    f"its accelerators are {model}" if model else "the model of its accelerators is not known"
                )
            if self.vendor and self.vendor.casefold() != vendor.casefold():
                yield f"its accelerators are of {vendor}"
            if self.memory_gb and not memory:
                yield "the memory of its accelerators is not known"
            elif self.memory_gb and not self.memory_gb.holds_for(memory / GIGABYTE):
                yield f"its accelerators have {memory / GIGABYTE:.3g} GB"
        if self.accelerators and not self.accelerators.holds_for(node.num_accelerators):
            yield f"it has {counted(node.num_accelerators, 'accelerator')}"
        labels = dict(node.labels)
        for name, value in self.label:
            if labels.get(name) != value:
                yield f"its label {name} is {labels[name]}" if name in labels else f"it has no label {name}"


_NO_PROPERTIES = Properties()


@dataclass(frozen=True, slots=True)
class PlacementWish:
    """An entry of `component_placement` that says what a place must be, and leaves its numbers to the planner.

    Attributes:
        components: the components that it holds for, all on the same devices.
        node_groups: the groups whose resources are chosen from.
        properties: what their nodes must be.
        count: how many resources; None: all that fit and are free.
        per_node: how many on each node; None: as they come.
        processes: how many processes share them evenly; None: one on each.
        same: all on one node, or on one island of devices that are joined directly (NVLink); "": as they come.
        beside: components on whose nodes they are.
        not_with: components on whose nodes they are not.
        sharing: components whose devices they are; else nobody else's are.
        path: where it stands in the config, for errors.
    """

    components: tuple[str, ...]
    node_groups: tuple[str, ...] = (CLUSTER_GROUP,)
    properties: Properties = _NO_PROPERTIES
    count: int | None = None
    per_node: int | None = None
    processes: int | None = None
    same: Literal["", "node", "island"] = ""
    beside: tuple[str, ...] = ()
    not_with: tuple[str, ...] = ()
    sharing: tuple[str, ...] = ()
    path: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The components, as an error names them."""
        return ",".join(self.components)

    @property
    def others(self) -> tuple[str, ...]:
        """The components whose places must be known first."""
        return (*self.beside, *self.not_with, *self.sharing)


def _is_said(wanted: str, model: str) -> bool:
    """Return whether every word of a wanted model is one of a node's, so that A10 is no A100."""
    words = set(_WORD.findall(wanted.casefold()))
    models = model.casefold().split(", ")  # a node may have several, and must have no other
    return bool(words) and all(words <= set(_WORD.findall(each)) for each in models)
