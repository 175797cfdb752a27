"""What a channel's clients and its server say to each other in a simulated cluster."""

from __future__ import annotations

from typing import NamedTuple

from rlinf_scheduler.queueing import NO_LIMITS, Deliver, Grant, Limits, QueueName, Refuse
from simulator.script import BATCHES, NOWAIT, Call
from simulator.users import UserCall

SERVER = "server"
CHANNEL = "channel"


class Put(NamedTuple):
    """An item, or (`item` None) its announcement."""

    ticket: int
    queue: str
    item: int | None
    weight: int
    size_bytes: int
    wait: bool
    priority: int = 0
    group: str | None = None


class Fill(NamedTuple):
    """The bytes of an announced item."""

    ticket: int
    item: int


class Get(NamedTuple):
    """A get, or a batch, which has limits."""

    ticket: int
    queue: QueueName
    batch_weight: int | None
    wait: bool
    limits: Limits | None = None
    group_size: int = 0
    shard: tuple[int, int] | None = None  # its index, and the step that it has done with
    ttl_us: int = 0  # of a lease


class Settle(NamedTuple):
    """The items of a lease are done with, or go back after a while."""

    generation: int
    done: bool
    delay_s: float = 0.0
    places: tuple[int, ...] | None = None  # of the items that are meant; None for all that are left


class DonePart(NamedTuple):
    """A rank is done with its part of a step."""

    shard: int
    step: int


class Extend(NamedTuple):
    """Whoever has a lease lives."""

    generation: int


class EndQueue(NamedTuple):
    """Nothing will be put into a queue any more."""

    ticket: int
    queue: str


class Flush(NamedTuple):
    """Batches are not to wait for more than what a queue holds."""

    ticket: int
    queue: str


class Join(NamedTuple):
    """Be one of the channel's producers."""

    ticket: int
    name: str


class Leave(NamedTuple):
    """Be none any more."""

    ticket: int
    number: int
    failed: bool


class Subscribe(NamedTuple):
    """Be a member of the subscription."""

    ticket: int


class Unsubscribe(NamedTuple):
    """Be none any more."""

    ticket: int
    number: int
    failed: bool


class Done(NamedTuple):
    """The server has done what was asked of it, or could not."""

    ticket: int
    problem: str = ""


class Withdraw(NamedTuple):
    """Nobody wants an operation any more."""

    ticket: int


class Arrived(NamedTuple):
    """Items are in the client's process; nobody has taken them."""

    ticket: int


INLINE_BYTES = 64 << 10

# What the server is asked for that is no operation.
REQUESTS = frozenset(("end", "flush", "join", "leave", "subscribe", "unsubscribe"))

Request = EndQueue | Flush | Join | Leave | Subscribe | Unsubscribe
Operation = Put | Fill | Get | Withdraw | Arrived | Request | Settle | DonePart | Extend
Operations = tuple[list[int], list[Operation]]
"""What a client sends: tickets whose items were taken, and operations in order."""
Answer = Grant | Deliver | Refuse | Done
News = tuple[list[int], list[Answer]]
"""What the server sends: tickets of accepted puts, and other answers in order."""


def is_announced(step: Call) -> bool:
    """Whether the bytes of a put follow when there is room for them."""
    return step.size_bytes > INLINE_BYTES


def opening(call: UserCall) -> Put | Get:
    """Return the message that begins an operation."""
    step = call.step
    wait = step.timeout_us != NOWAIT
    if step.kind == "put":
        item = None if is_announced(step) else step.number
        return Put(
            call.ticket, step.queue, item, step.weight, step.size_bytes, wait, step.priority, step.group
        )
    if step.kind == "step":
        return Get(call.ticket, step.queue, None, wait, None, 0, (step.weight, call.done_step))
    if step.kind == "group":
        return Get(call.ticket, step.queue, None, wait, None, step.weight)
    if step.kind == "lease":
        weight = None if step.limits is None else step.weight or None
        return Get(call.ticket, step.queue, weight, wait, step.limits, 0, None, step.ttl_us)
    if step.kind in BATCHES:
        return Get(call.ticket, step.queue, step.weight or None, wait, step.limits or NO_LIMITS)
    return Get(call.ticket, step.queue, None, wait)


def is_after_puts(step: Call) -> bool:
    """Whether a request waits until its process's puts are over."""
    return step.kind in ("end", "flush", "leave") and not step.fails


def request(call: UserCall, client: str) -> Request:
    """Return the message of a request."""
    ticket, step = call.ticket, call.step
    match step.kind:
        case "end":
            return EndQueue(ticket, step.queue)
        case "flush":
            return Flush(ticket, step.queue)
        case "join":
            return Join(ticket, client.partition(".")[0])
        case "subscribe":
            return Subscribe(ticket)
        case "unsubscribe":
            return Unsubscribe(ticket, step.turn, step.fails)
        case _:
            return Leave(ticket, step.turn, step.fails)
