"""What is said of items of a channel that stay on their devices in a simulated cluster."""

from __future__ import annotations

from typing import NamedTuple

from rlinf_scheduler.devices.open_buckets import BucketKey

DEVICE_ITEMS = "device items"
PUTS_FROM = 1_000_000
"""The numbers of items, which are the tickets of their puts, begin here: those of gets stay below."""


class ItemAt(NamedTuple):
    """An item: who put it, its block, and its bucket."""

    number: int
    producer: str
    device: str
    block: int
    generation: int
    bucket: int
    key: BucketKey


class Put(NamedTuple):
    """A producer has filled a bucket."""

    item: ItemAt


class PutOver(NamedTuple):
    """The item of a put was accepted, or never will be."""

    number: int


class Get(NamedTuple):
    """A consumer wants an item."""

    ticket: int


class Here(NamedTuple):
    """It has one."""

    ticket: int
    item: ItemAt


class GetOver(NamedTuple):
    """It gets none."""

    ticket: int


class Confirm(NamedTuple):
    """It has taken what it got."""

    ticket: int


class Withdraw(NamedTuple):
    """It does not want any more."""

    ticket: int


class Resend(NamedTuple):
    """What was delivered cannot be had."""

    ticket: int


class Opened(NamedTuple):
    """A bucket is open at the sender's."""

    bucket: int


class Read(NamedTuple):
    """Who has not the device asks the item's producer for its bytes."""

    ticket: int
    item: ItemAt


class ReadOut(NamedTuple):
    """These are they; or there is something else in its place."""

    ticket: int
    is_there: bool
