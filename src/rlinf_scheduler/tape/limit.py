"""How large the recording of a rank may become; said in the environment of its launcher."""

from __future__ import annotations

import os

from rlinf_scheduler.errors import ConfigError

# Of one rank's recording, in MiB; a further record ends it.
LIMIT_VARIABLE = "RLINF_RECORD_MIB"
DEFAULT_LIMIT_BYTES = 8 << 30


def limit_bytes() -> int:
    """How large a rank's recording may become, as RLINF_RECORD_MIB says it in this process's environment.

    Raises:
        ConfigError: that is no whole number, or 0.
    """
    text = os.environ.get(LIMIT_VARIABLE)
    if not text:
        return DEFAULT_LIMIT_BYTES
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise ConfigError(f"{LIMIT_VARIABLE} is {text!r}; it takes a whole number of MiB, 1 at least")
    return int(text) << 20
