"""How much memory the buckets of a process may take on each device."""

from __future__ import annotations

import os

from rlinf_scheduler.errors import ConfigError

VARIABLE = "RLINF_DEVICE_POOL_MIB"


def pool_limit_bytes() -> int | None:
    """What `RLINF_DEVICE_POOL_MIB` says, 0 for no buckets; None where it says nothing.

    Raises:
        ConfigError: the variable holds no number of at least 0.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise ConfigError(f"{VARIABLE} is {text!r}; it takes a whole number of MiB, 0 for host memory only")
    return int(text) << 20
