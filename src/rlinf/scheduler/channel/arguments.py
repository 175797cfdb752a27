"""What a channel's operations accept; a mistake is a ChannelArgumentError before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlinf.scheduler.errors import ChannelArgumentError
from rlinf.scheduler.queueing import QueueName, check_batch_weight, check_maxsize, check_weight

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


def checked_timeout(channel: str, timeout_s: Any) -> float | None:
    """Return a deadline in seconds, or None."""
    if timeout_s is None:
        return None
    if isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool) and timeout_s >= 0:
        return None if timeout_s > FOREVER_S else float(timeout_s)
    raise ChannelArgumentError(channel, f"timeout_s is a number of seconds of at least 0, not {timeout_s!r}")


def checked_successor(channel: str, successor_s: Any) -> float:
    """Return how long a producer's place is kept, in seconds."""
    limit_s = checked_timeout(channel, successor_s)
    return FOREVER_S if limit_s is None else limit_s


def checked_weight(channel: str, weight: Any) -> float:
    """Return an item's weight."""
    if type(weight) is int and 0 <= weight <= MAX_INTEGER:
        return weight
    return _sendable(_checked(channel, check_weight, weight))


def checked_batch_weight(channel: str, batch_weight: Any, target_weight: Any) -> float:
    """Return the weight that is meant by `batch_weight` and its other name `target_weight`."""
    if (batch_weight is None) == (target_weight is None):
        problem = "get_batch takes batch_weight, or target_weight, which is another name of it"
        raise ChannelArgumentError(channel, problem)
    given = target_weight if batch_weight is None else batch_weight
    return _sendable(_checked(channel, check_batch_weight, given))


def checked_maxsize(channel: str, maxsize: Any) -> int:
    """Return a bound in items per queue."""
    return int(_checked(channel, check_maxsize, maxsize))


def checked_producers(channel: str, producers: Any) -> int:
    """Return how many producers are counted; 0 for none."""
    if producers is None:
        return 0
    if isinstance(producers, int) and not isinstance(producers, bool) and producers > 0:
        return producers
    problem = f"producers is how many there will be, an integer of at least 1, not {producers!r}"
    raise ChannelArgumentError(channel, problem)


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
