"""From which level on what workers log is shown."""

from __future__ import annotations

import logging
import os

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.wording import list_names

LOGGER_NAME = "rlinf.worker"
LEVEL_VARIABLE = "RLINF_LOG_LEVEL"


def level_named() -> int | None:
    """The level that RLINF_LOG_LEVEL names in this process; None where it names none.

    Raises:
        ConfigError: there is no such level.
    """
    name = os.environ.get(LEVEL_VARIABLE, "").strip()
    return level_of(name, LEVEL_VARIABLE) if name else None


def level_of(wanted: int | str, what: str) -> int:
    """A level that was given by its name or its number.

    Args:
        wanted: the name, in capitals or not, or the number.
        what: what it is the value of, for an error.

    Raises:
        ConfigError: there is no such level.
    """
    known = logging.getLevelNamesMapping()
    level = known.get(wanted.upper()) if isinstance(wanted, str) else wanted
    if type(level) is not int or level < 0:
        raise ConfigError(f"{what}={wanted!r}: it is a number from 0, or one of {list_names(known)}")
    return level
