"""What a channel's operations accept; a mistake is a ChannelArgumentError before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from rlinf_scheduler.checks import FOREVER_S, is_encodable, is_seconds
from rlinf_scheduler.errors import ChannelArgumentError
from rlinf_scheduler.queueing.item import QueueName, check_weight
from rlinf_scheduler.queueing.out_of_turn import GroupName

DEFAULT_QUEUE = "default"
# The largest integer that travels as one.
MAX_INTEGER = 2**63 - 1
MAX_VERSION = 2**53
# Names of queues and groups are no longer, in bytes.
MAX_NAME_BYTES = 64 << 10


def checked_queue_name(channel: str, queue_name: Any, key: Any) -> QueueName:
    """Return the queue that is meant by `queue_name` and its other name `key`."""
    if key is not None:
        if queue_name not in (DEFAULT_QUEUE, key):
            problem = f"queue_name={queue_name!r} and key={key!r} are two names of one argument"
            raise ChannelArgumentError(channel, problem)
        queue_name = key
    if type(queue_name) is not str or not queue_name.isascii() or len(queue_name) > MAX_NAME_BYTES:
        check_name(channel, queue_name, "queue")
    name: QueueName = queue_name
    return name


def checked_group(channel: str, group: Any) -> GroupName:
    """Return the group that an item belongs to."""
    if type(group) is not str or not group.isascii() or len(group) > MAX_NAME_BYTES:
        check_name(channel, group, "group")
    name: GroupName = group
    return name


def checked_version(channel: str, version: Any, what: str = "version") -> int:
    """Return a version, or a number of versions."""
    if hasattr(version, "__index__") and not isinstance(version, bool) and 0 <= int(version) <= MAX_VERSION:
        return int(version)
    raise ChannelArgumentError(channel, f"{what} is a whole number of at least 0, not {version!r}")


def checked_timeout(channel: str, timeout_s: Any, what: str = "timeout_s") -> float | None:
    """Return a deadline in seconds, or None."""
    if timeout_s is None:
        return None
    kind = type(timeout_s)
    if ((kind is int or kind is float) and timeout_s >= 0) or is_seconds(timeout_s):
        return None if timeout_s > FOREVER_S else float(timeout_s)
    raise ChannelArgumentError(channel, f"{what} is a number of seconds of at least 0, not {timeout_s!r}")


def or_forever(timeout_s: float | None) -> float:
    """Return a deadline as a number, where one is needed."""
    return FOREVER_S if timeout_s is None else timeout_s


def checked_weight(channel: str, weight: Any) -> float:
    """Return an item's weight."""
    if type(weight) is int and 0 <= weight <= MAX_INTEGER:
        return weight
    return sendable(checked(channel, check_weight, weight))


def checked_priority(channel: str, priority: Any) -> int:
    """Return an item's priority."""
    if type(priority) is int and -MAX_INTEGER <= priority <= MAX_INTEGER:
        return priority
    raise ChannelArgumentError(channel, f"priority is a Python int of 64 bits, not {priority!r}")


def checked_count(channel: str, what: str, number: Any) -> int:
    """Return a whole number of at least 1."""
    if isinstance(number, int) and not isinstance(number, bool) and 0 < number <= MAX_INTEGER:
        return number
    raise ChannelArgumentError(channel, f"{what} is an integer of at least 1, not {number!r}")


def checked_seconds(channel: str, what: str, seconds: Any, *, may_be_zero: bool = False) -> float:
    """Return a time in seconds, more than none unless it `may_be_zero`."""
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if is_number and (seconds > 0 or (may_be_zero and seconds == 0)):
        return float(min(seconds, FOREVER_S))
    least = "at least" if may_be_zero else "more than"
    raise ChannelArgumentError(channel, f"{what} is a number of seconds of {least} 0, not {seconds!r}")


def checked_optional_count(channel: str, what: str, number: Any) -> int:
    """Return a bound as a whole number; 0 for none."""
    return 0 if number is None else checked_count(channel, what, number)


def check_name(channel: str, name: Any, what: str) -> None:
    """Raise unless a name can travel, and is not too long."""
    _check_part(channel, name, name, what)
    size_bytes = len(msgspec.msgpack.encode(name))
    if size_bytes > MAX_NAME_BYTES:
        problem = f"a {what}'s name of {size_bytes} bytes; it may have {MAX_NAME_BYTES}"
        raise ChannelArgumentError(channel, problem)


def _check_part(channel: str, part: Any, whole: Any, what: str) -> None:
    """Raise unless it is text, a whole number of 64 bits, or a tuple of such; of a queue, None may be in it."""
    if isinstance(part, tuple):
        for inner in part:
            if inner is not None or what != "queue":
                _check_part(channel, inner, whole, what)
    elif isinstance(part, str):
        if not is_encodable(part):
            raise ChannelArgumentError(channel, f"a {what}'s name is text, not {whole!r}")
    elif type(part) is not int or not -MAX_INTEGER <= part <= MAX_INTEGER:
        problem = (
            f"a {what}'s name is a string, a Python int of 64 bits, or a tuple of these"
            f"{' and None' if what == 'queue' else ''}, not {whole!r}{_as_int(part)}"
        )
        raise ChannelArgumentError(channel, problem)


def _as_int(part: Any) -> str:
    """A hint for what counts as a whole number, and is no int: one of numpy, say."""
    is_whole = hasattr(part, "__index__") and not isinstance(part, int)
    return "; use int(...)" if is_whole else ""


def checked(channel: str, check: Callable[[Any], float], value: Any) -> float:
    """Return what a check makes of a value, whose ValueError is one of an argument."""
    try:
        return check(value)
    except ValueError as error:
        raise ChannelArgumentError(channel, str(error)) from error


def sendable(number: float) -> float:
    """Return a number as it can travel."""
    return float(number) if number > MAX_INTEGER else number
