"""Which item is meant, and what it was made of: as it travels, and as it is recorded."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class ItemId(NamedTuple):
    """Which item: who put it (the process's name, and its id, for one that came back has the same name), its number."""

    producer: str
    process_id: str
    number: int

    def __str__(self) -> str:
        return f"{self.producer}/{self.number}"


class Trace(msgspec.Struct, array_like=True, gc=False):
    """What an item was made of: items that were taken for it, how many more these are; and at which step."""

    sources: list[ItemId] = []
    num_more: int = 0
    step: int | None = None
