"""What an item of a broadcast carries beside its sender's name: which one it is, and where it began."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlinf.scheduler.comm.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class Stamp:
    """Which item of a topic this is. It may come from its sender, or from a process that hands it on.

    Attributes:
        topic: what the items belong to that keep an order among them.
        number: grows with every item of the topic.
        origin: the process that sent it first.
        keep: whether the receiver is to keep it, to hand it on to others of its machine.
    """

    topic: str
    number: int
    origin: Endpoint
    keep: bool = False

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells the item from every other one."""
        return (self.origin.process_id, self.topic, self.number)

    def to_wire(self) -> list[Any]:
        """The stamp as msgpack carries it."""
        return [self.topic, self.number, self.origin.to_wire(), self.keep]

    @classmethod
    def from_wire(cls, fields: list[Any]) -> Stamp:
        """The stamp that `to_wire` gave."""
        topic, number, origin, keep = fields
        return cls(topic, number, Endpoint.from_wire(origin), keep)
