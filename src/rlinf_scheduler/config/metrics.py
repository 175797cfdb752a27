"""`cluster.metrics:`: where what ranks log by `log_metrics` is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from rlinf_scheduler.checks import absolute_path
from rlinf_scheduler.config.findings import check
from rlinf_scheduler.config.schema import Section
from rlinf_scheduler.config.source import SECTION
from rlinf_scheduler.errors import raise_config_errors

METRICS_PATH = f"{SECTION}.metrics"
# Longer than ranks of a group are apart, mostly.
WAIT_S = 60.0
# How the values of a group's ranks become one.
Reduction: TypeAlias = Literal["mean", "sum", "max", "min"]


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Where metrics are written.

    Attributes:
        folder: of what writers write into files.
        writers: the options of each, by its name.
        wait_s: how long a step waits for a rank that logs no more, in seconds.
    """

    folder: str
    writers: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"csv": {}})
    wait_s: float = WAIT_S


def _as_mapping(value: Any) -> Any:
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return {name: {} for name in names}
    if isinstance(value, Mapping):
        return {name: {} if options is None else options for name, options in value.items()}
    return value


_Writers = Annotated[dict[str, dict[str, Any]], BeforeValidator(_as_mapping), Field(min_length=1)]


class MetricsSection(Section):
    """`metrics:` as it stands in the file."""

    folder: Annotated[str, Field(min_length=1)]
    writers: _Writers = {"csv": {}}  # noqa: RUF012 - pydantic copies it
    wait_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = WAIT_S


def read_metrics(value: Any) -> MetricsConfig | None:
    """The section, checked; None where there is none.

    Raises:
        ConfigError: it has a mistake; `ConfigErrors` for several.
    """
    if value is None:
        return None
    section, errors = check(MetricsSection, value, METRICS_PATH)
    raise_config_errors(errors)
    if section is None:
        return None  # never: then there are errors
    return MetricsConfig(absolute_path(section.folder), section.writers, section.wait_s)
