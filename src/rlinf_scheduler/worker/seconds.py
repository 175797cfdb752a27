"""Times that a user gives about groups and calls, checked before anything is waited for."""

from __future__ import annotations

from typing import Any

from rlinf_scheduler.checks import is_seconds
from rlinf_scheduler.comm.transfer import FOREVER_S
from rlinf_scheduler.errors import ConfigError


def checked_seconds(what: str, value: Any) -> float:
    """A time in seconds, of at most thirty years.

    Args:
        what: the argument's name.
        value: what was given.

    Raises:
        ConfigError: it is no number of at least 0.
    """
    if is_seconds(value):
        return float(min(value, FOREVER_S))
    raise ConfigError(f"{what}={value!r}: it is a number of seconds from 0")


def checked_deadline(timeout_s: Any) -> float | None:
    """A deadline in seconds; None is none.

    Raises:
        ConfigError: it is neither None nor a number of at least 0.
    """
    if timeout_s is None:
        return None
    if not is_seconds(timeout_s):
        raise ConfigError(f"timeout_s={timeout_s!r}: it is a number of seconds from 0, or None")
    return checked_seconds("timeout_s", timeout_s)
