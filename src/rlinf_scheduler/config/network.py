"""`cluster.network:`: how the processes of a job talk from machine to machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_scheduler.config.findings import shown, unknown_key
from rlinf_scheduler.errors import ConfigError

_PATH = "cluster.network"
_KEYS = ["encryption", "ports"]
_PORTS = re.compile(r"\s*(\d{1,5})\s*-\s*(\d{1,5})\s*", re.ASCII)
# Below, only the administrator's programs may listen.
_LOWEST, _HIGHEST = 1024, 65535


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """How the processes of a job talk from machine to machine.

    Attributes:
        encryption: whether what they say is encrypted; they prove who they are all the same.
        ports: the first and the last of the ports that they take; None: any.
    """

    encryption: bool = True
    ports: tuple[int, int] | None = None


def read_network(value: Any) -> NetworkConfig:
    """The section, checked.

    Raises:
        ConfigError: it has a mistake.
    """
    if value is None:
        return NetworkConfig()
    if not isinstance(value, Mapping):
        problem = f"this must be a mapping, not {shown(value)}"
        raise ConfigError(problem, path=_PATH, hint="write encryption: off")
    for key in value:
        if key not in _KEYS:
            raise unknown_key(key, _KEYS, f"{_PATH}.{key}")
    return NetworkConfig(_encryption(value.get("encryption")), read_ports(value.get("ports")))


def _encryption(setting: Any) -> bool:
    # Without quotes, on and off are true and false.
    if setting not in (None, True, False, "on", "off") or isinstance(setting, (int, float)) != isinstance(
        setting, bool
    ):
        raise ConfigError(f"this must be on or off, not {shown(setting)}", path=f"{_PATH}.encryption")
    return setting not in (False, "off")


def read_ports(setting: Any) -> tuple[int, int] | None:
    """The range that a text such as "20000-20999" stands for; None for None.

    Raises:
        ConfigError: it is no range of ports.
    """
    if setting is None:
        return None
    path = f"{_PATH}.ports"
    match = _PORTS.fullmatch(setting) if isinstance(setting, str) else None
    if match is None:
        hint = "each process of the job on a node takes one of them"
        raise ConfigError(
            f"this must be a range such as 20000-20999, not {shown(setting)}", path=path, hint=hint
        )
    first, last = int(match[1]), int(match[2])
    if not _LOWEST <= first < last <= _HIGHEST:
        problem = f"this must go upwards, within {_LOWEST} and {_HIGHEST}, not {first}-{last}"
        raise ConfigError(problem, path=path)
    return first, last
