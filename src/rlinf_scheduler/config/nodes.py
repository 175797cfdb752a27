"""`cluster.nodes:`: how many nodes a job begins with, and how many it may have as they come and go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_scheduler.checks import whole_number
from rlinf_scheduler.config.findings import shown, unknown_key
from rlinf_scheduler.errors import ConfigError

_PATH = "cluster.nodes"
_KEYS = ["min", "max"]


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """How many nodes a job that takes nodes as they come may have at a time.

    Attributes:
        least: it begins once so many are there.
        most: it takes no more than these; None: all that come.
    """

    least: int = 1
    most: int | None = None

    def room(self, there: int) -> int | None:
        """How many more it may take, beside those that are there; None: any number.

        >>> NodeLimits(2, 8).room(5), NodeLimits(2, 8).room(9), NodeLimits().room(5)
        (3, 0, None)
        """
        return None if self.most is None else max(0, self.most - there)


def read_nodes(value: Any) -> NodeLimits | None:
    """The section, checked.

    Raises:
        ConfigError: it has a mistake.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        problem = f"this must be a mapping, not {shown(value)}"
        raise ConfigError(
            problem, path=_PATH, hint="write {min: 2, max: 8}, or num_nodes for a number that stays"
        )
    for key in value:
        if key not in _KEYS:
            raise unknown_key(key, _KEYS, f"{_PATH}.{key}")
    limits = NodeLimits(_number(value, "min") or 1, _number(value, "max"))
    if limits.most is not None and limits.most < limits.least:
        problem = f"max is {limits.most}, which is less than min, {limits.least}"
        raise ConfigError(problem, path=f"{_PATH}.max")
    return limits


def check_one_number(nodes: object, num_nodes: object) -> None:
    """Make sure that the number of nodes is said once.

    Raises:
        ConfigError: it is fixed, and changes.
    """
    if nodes is not None and num_nodes is not None:
        problem = "num_nodes is a number that stays, and nodes says that it changes"
        raise ConfigError(problem, path=_PATH, hint="keep one of the two")


def _number(section: Mapping[str, Any], key: str) -> int | None:
    value = section.get(key)
    if value is None:
        return None
    number = whole_number(value, lowest=1, from_text=True)
    if number is None:
        raise ConfigError(f"this must be a whole number from 1, not {shown(value)}", path=f"{_PATH}.{key}")
    return number
