"""What a channel's operations accept; a mistake is a ChannelArgumentError before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlinf.scheduler.channel import wire
from rlinf.scheduler.errors import ChannelArgumentError
from rlinf.scheduler.queueing import QueueName, ShardPlan, check_batch_weight, check_maxsize, check_weight

DEFAULT_QUEUE = "default"
# The largest integer that travels as one.
MAX_INTEGER = 2**63 - 1
# Thirty years: a longer deadline is none.
FOREVER_S = 1e9


def checked_queue_name(channel: str, queue_name: Any, key: Any) -> QueueName:
    """Return the queue that is meant by `queue_name` and its other name `key`."""
    if key is not None:
        if queue_name not in (DEFAULT_QUEUE, key):
            problem = f"queue_name={queue_name!r} and key={key!r} are two names of one argument"
            raise ChannelArgumentError(channel, problem)
        queue_name = key
    if type(queue_name) is not str or not queue_name.isascii():
        _check_queue_name(channel, queue_name, queue_name)
    name: QueueName = queue_name
    return name


def checked_timeout(channel: str, timeout_s: Any, what: str = "timeout_s") -> float | None:
    """Return a deadline in seconds, or None."""
    if timeout_s is None:
        return None
    if isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool) and timeout_s >= 0:
        return None if timeout_s > FOREVER_S else float(timeout_s)
    raise ChannelArgumentError(channel, f"{what} is a number of seconds of at least 0, not {timeout_s!r}")


def checked_successor(channel: str, successor_s: Any) -> float:
    """Return how long a producer's place is kept, in seconds."""
    limit_s = checked_timeout(channel, successor_s)
    return FOREVER_S if limit_s is None else limit_s


def or_forever(timeout_s: float | None) -> float:
    """Return a deadline as a number, where one is needed."""
    return FOREVER_S if timeout_s is None else timeout_s


def checked_weight(channel: str, weight: Any) -> float:
    """Return an item's weight."""
    if type(weight) is int and 0 <= weight <= MAX_INTEGER:
        return weight
    return _sendable(_checked(channel, check_weight, weight))


def checked_priority(channel: str, priority: Any) -> int:
    """Return an item's priority."""
    if type(priority) is int and -MAX_INTEGER <= priority <= MAX_INTEGER:
        return priority
    raise ChannelArgumentError(channel, f"priority is a Python int of 64 bits, not {priority!r}")


def checked_batch_weight(
    channel: str, batch_weight: Any, target_weight: Any, limits: wire.Limits | None
) -> float | None:
    """Return the weight that is meant by `batch_weight` and its other name `target_weight`; None with limits only."""
    given = target_weight if batch_weight is None else batch_weight
    if given is None and limits is not None:
        return None
    if (batch_weight is None) == (target_weight is None):
        problem = (
            "get_batch takes batch_weight, or target_weight, which is another name of it, or max_items, max_bytes, "
            "min_items, max_wait_s"
        )
        raise ChannelArgumentError(channel, problem)
    return _sendable(_checked(channel, check_batch_weight, given))


def checked_limits(
    channel: str, maxsize: int, max_items: Any, max_bytes: Any, min_items: Any, max_wait_s: Any
) -> wire.Limits | None:
    """Return what a batch has to be besides its weight; None if nothing was said."""
    if max_items is None and max_bytes is None and min_items == 1 and max_wait_s is None:
        return None
    limits = wire.Limits(
        checked_count(channel, "min_items", min_items),
        0 if max_items is None else checked_count(channel, "max_items", max_items),
        0 if max_bytes is None else checked_count(channel, "max_bytes", max_bytes),
        checked_timeout(channel, max_wait_s, "max_wait_s"),
    )
    if 0 < limits.max_items < limits.min_items:
        problem = f"no batch has at least {min_items} and at most {max_items} items"
        raise ChannelArgumentError(channel, problem)
    if 0 < maxsize < limits.min_items:
        problem = f"no batch has {min_items} items where a queue holds at most {maxsize}"
        raise ChannelArgumentError(channel, problem)
    return limits


def checked_max_bytes(channel: str, max_bytes: Any) -> int | None:
    """Return a bound in bytes; 0 for none, None for the default."""
    if max_bytes is None or (type(max_bytes) is int and max_bytes == 0):
        return max_bytes
    return checked_count(channel, "max_bytes", max_bytes)


def checked_count(channel: str, what: str, number: Any) -> int:
    """Return a whole number of at least 1."""
    if isinstance(number, int) and not isinstance(number, bool) and 0 < number <= MAX_INTEGER:
        return number
    raise ChannelArgumentError(channel, f"{what} is an integer of at least 1, not {number!r}")


def checked_maxsize(channel: str, maxsize: Any) -> int:
    """Return a bound in items per queue."""
    return int(_checked(channel, check_maxsize, maxsize))


def checked_producers(channel: str, producers: Any) -> int:
    """Return how many producers are counted; 0 for none."""
    if producers is None:
        return 0
    return checked_count(channel, "producers", producers)


def checked_name(name: Any) -> str:
    """Return a channel's name."""
    if not isinstance(name, str) or not name:
        raise ChannelArgumentError(str(name), f"a channel's name is a string that is not empty, not {name!r}")
    if ":" in name or not _is_text(name):
        problem = f"a channel's name is text without ':', which separates it from a rank, not {name!r}"
        raise ChannelArgumentError(name, problem)
    return name


def _check_queue_name(channel: str, part: Any, whole: Any) -> None:
    """Raise unless it is text, a whole number of 64 bits, or a tuple of such."""
    if isinstance(part, tuple):
        for inner in part:
            _check_queue_name(channel, inner, whole)
    elif isinstance(part, str):
        if not _is_text(part):
            raise ChannelArgumentError(channel, f"a queue's name is text, not {whole!r}")
    elif type(part) is not int or not -MAX_INTEGER <= part <= MAX_INTEGER:
        problem = (
            f"a queue's name is a string, a Python int of 64 bits, or a tuple of these, not {whole!r}"
            f"{_as_int(part)}"
        )
        raise ChannelArgumentError(channel, problem)


def _as_int(part: Any) -> str:
    """A hint for what counts as a whole number, and is no int: one of numpy, say."""
    is_whole = hasattr(part, "__index__") and not isinstance(part, int)
    return "; use int(...)" if is_whole else ""


def _is_text(name: str) -> bool:
    """Whether it can be encoded: a half of a surrogate pair cannot."""
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


def _checked(channel: str, check: Callable[[Any], float], value: Any) -> float:
    try:
        return check(value)
    except ValueError as error:
        raise ChannelArgumentError(channel, str(error)) from error


def _sendable(number: float) -> float:
    return float(number) if number > MAX_INTEGER else number


def checked_plan(
    channel: str,
    num_shards: Any,
    policy: Any,
    batch_weight: Any,
    batch_items: Any,
    cost: Any,
    equal_counts: bool,
) -> ShardPlan:
    """Return how a queue is divided."""
    plan = ShardPlan(
        checked_count(channel, "num_shards", num_shards),
        policy,
        None if batch_weight is None else _sendable(_checked(channel, check_batch_weight, batch_weight)),
        None if batch_items is None else checked_count(channel, "batch_items", batch_items),
        _checked_cost(channel, cost),
        bool(equal_counts),
    )
    try:
        plan.check()
    except ValueError as error:
        raise ChannelArgumentError(channel, str(error)) from error
    return plan


def _checked_cost(channel: str, cost: Any) -> tuple[float, float]:
    """Return what an item costs, as the factors of its weight and of its weight's square."""
    if cost is None:
        return 1, 0
    if cost == "quadratic":
        return 0, 1
    try:
        linear, quadratic = (check_weight(factor) for factor in cost)
    except (TypeError, ValueError) as error:
        problem = (
            f"cost is None (the weight), 'quadratic' (its square), or two numbers (a, b) of at least 0, for "
            f"a * weight + b * weight ** 2; not {cost!r}"
        )
        raise ChannelArgumentError(channel, problem) from error
    return linear, quadratic
