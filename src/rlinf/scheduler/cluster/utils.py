"""Small helpers of a cluster by RLinf's names."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.extension import load_extension
from rlinf_scheduler.planning.grammar import parse_ranks
from rlinf_scheduler.wording import did_you_mean

_NO_PROXY = ("NO_PROXY", "no_proxy")


def load_user_extension_module(logger: logging.Logger | None = None) -> None:
    """Import the module that RLINF_EXT_MODULE names, and call its `register()`; once in a process.

    Raises:
        ConfigError: it cannot be loaded.
    """
    del logger  # what goes wrong is raised
    load_extension()


def parse_rank_config(
    rank_config: str | int, available_ranks: Sequence[int] | None = None, rank_type: str | None = None
) -> list[int]:
    """The ranks of a text such as "0-3,5" or "all", ascending.

    Args:
        rank_config: the text, or one rank.
        available_ranks: those that there are; `all` stands for them.
        rank_type: what they are ranks of, for an error.

    Raises:
        ConfigError: the text is none such, or names a rank that is not there.
    """
    text = str(rank_config).strip()
    if text.lower() == "all":
        if available_ranks is None:
            raise ConfigError("'all' stands for the ranks that there are, and none were given")
        return sorted(set(available_ranks))
    ranks = sorted(parse_ranks(text))
    absent = [] if available_ranks is None else sorted(set(ranks) - set(available_ranks))
    if absent:
        what = f"{rank_type} " if rank_type else ""
        raise ConfigError(
            f"{what}rank {absent[0]} of '{text}' is not there; there are {list(available_ranks or ())}"
        )
    return ranks


def dataclass_arg_check(
    dataclass: Any, kwargs: Mapping[str, Any], no_check_unknown: bool = False, error_suffix: str = ""
) -> tuple[list[str], set[str], set[str]]:
    """Check that keywords are those of a dataclass's fields.

    Returns:
        The fields that are needed and missing, which is none; keywords that are no fields; all fields.

    Raises:
        ConfigError: one that is needed is missing, or one is no field.
    """
    there = {each.name: each for each in dataclasses.fields(dataclass)}
    given = {str(name) for name in kwargs}
    missing = [
        name
        for name, each in there.items()
        if name not in given
        and each.default is dataclasses.MISSING
        and each.default_factory is dataclasses.MISSING
    ]
    unknown = given - there.keys()
    where = f" {error_suffix}" if error_suffix else ""
    if missing:
        raise ConfigError(f"{', '.join(missing)} is missing{where}")
    if unknown and not no_check_unknown:
        first = sorted(unknown)[0]
        raise ConfigError(
            f"unknown key '{first}'{where}; there are {', '.join(there)}", hint=did_you_mean(first, there)
        )
    return missing, unknown, set(there)


@contextlib.contextmanager
def without_http_proxies() -> Iterator[None]:
    """A block in which what runs on this machine is asked without a proxy."""
    before = {name: os.environ.get(name) for name in _NO_PROXY}
    host = os.environ.get("RAY_ADDRESS", "").rpartition("//")[2].partition(":")[0]
    hosts = ",".join(dict.fromkeys(filter(None, ("127.0.0.1", "localhost", host))))
    os.environ.update(dict.fromkeys(_NO_PROXY, hosts))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class DistributedRayLogCollector:
    """RLinf's name for what splits the ranks' output into files; ours writes each rank's own from the start.

    Raises:
        ConfigError: always; the text says what to write instead.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        problem = "nothing has to be collected: each rank writes files of its own"
        raise ConfigError(problem, hint="Cluster(distributed_log_dir=...), or log_folder=, says where")
