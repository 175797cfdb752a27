"""RLinf's names of emulated networks: the section as records, and its links as something to be asked.

`cluster.net_emulation` alone emulates a job's network (see `rlinf_scheduler.emulation`); nothing has to be asked there.
"""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_scheduler.comm.codec import encode
from rlinf_scheduler.config.net_emulation import NetEmulation, read_net_emulation
from rlinf_scheduler.config.source import SECTION, read_source
from rlinf_scheduler.emulation.links import Links, place_of
from rlinf_scheduler.errors import ConfigError, raise_config_errors
from rlinf_scheduler.planning import parse_ranks

_KEY = "net_emulation"


@dataclass(frozen=True)
class CrossDCPair:
    """How long a message is under way from one rank to another."""

    src: str
    dst: str
    delay_ms: float


@dataclass(frozen=True)
class BandwidthGroup:
    """Ranks that share a bandwidth."""

    members: tuple[str, ...]
    bandwidth_mbps: float


@dataclass(frozen=True)
class NetEmulationConfig:
    """The section, with every rank on its own."""

    enabled: bool
    symmetric: bool
    crossdc_pairs: tuple[CrossDCPair, ...]
    bandwidth_groups: tuple[BandwidthGroup, ...]

    @classmethod
    def from_cfg(cls, cfg: Any) -> NetEmulationConfig | None:
        """Return what a section says, a dict or a DictConfig; None where it is not enabled.

        Raises:
            ConfigError: a mistake in it, which is a ValueError too.
        """
        if cfg is None:
            return None
        section = _plain(cfg)
        _checked(section)
        if not section.get("enabled", False):
            return None
        pairs = (
            CrossDCPair(src, dst, float(each["delay_ms"]))
            for each in section.get("crossdc_pairs", ())
            for src, dst in itertools.product(_ranks(each["src"]), _ranks(each["dst"]))
        )
        groups = (
            BandwidthGroup(_ranks(each["members"]), float(each["bandwidth_mbps"]))
            for each in section.get("bandwidth_groups", ())
        )
        return cls(True, bool(section.get("symmetric", True)), tuple(pairs), tuple(groups))


class NetEmulationManager:
    """The links of a section that is enabled, by this process's clock."""

    def __init__(self, cfg: Any) -> None:
        emulation = None if cfg is None else _checked(_plain(cfg))
        if emulation is None:
            raise ConfigError(
                "no network is emulated: the section is not enabled", path="cluster.net_emulation"
            )
        self._links = Links(emulation)
        self._numbers = itertools.count()

    def reserve(self, src: str, dst: str, size_bytes: int) -> float:
        """Send so many bytes now; return when they are there, in seconds from now, 0.0 without a link."""
        return self.reserve_broadcast(src, [dst], size_bytes)

    def reserve_broadcast(self, src: str, dsts: Sequence[str], size_bytes: int) -> float:
        """Send the same to several; return when all have it."""
        transfer, now = f"{src}/{next(self._numbers)}", time.monotonic()
        found = [self._links.between(place_of(src), place_of(dst)) for dst in dsts]
        there = [
            self._links.book(link, max(0, size_bytes), now, transfer) for link in found if link is not None
        ]
        return max(0.0, max(there, default=now) - now)

    @staticmethod
    def estimate_payload_size_bytes(payload: Any) -> int:
        """Return how many bytes an object is on the wire."""
        if payload is None:
            return 0
        encoded = encode(payload)
        head, *buffers = encoded.sizes
        if not buffers:
            return len(pickle.dumps(payload, protocol=pickle.HIGHEST_PROTOCOL))
        return sum(buffers) if hasattr(payload, "element_size") else head + sum(buffers)


def _plain(cfg: Any) -> Any:
    return read_source({SECTION: {_KEY: cfg}}).section[_KEY]


def _checked(section: Mapping[str, Any]) -> NetEmulation | None:
    errors: list[ConfigError] = []
    emulation = read_net_emulation(section, errors)
    raise_config_errors(errors)
    return emulation


def _ranks(ends: Any) -> tuple[str, ...]:
    """Each rank of some ends; what names none stays as it is."""
    found: list[str] = []
    for end in [ends] if isinstance(ends, str) else ends:
        name, colon, ranks = str(end).partition(":")
        found += [f"{name.strip()}:{rank}" for rank in parse_ranks(ranks)] if colon else [name.strip()]
    return tuple(found)
