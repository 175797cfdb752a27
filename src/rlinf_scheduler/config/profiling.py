"""`cluster.profiling:`: which ranks are started under a profiler, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from rlinf_scheduler.config.findings import check, shown
from rlinf_scheduler.config.schema import NodeRanks, Section
from rlinf_scheduler.errors import ConfigError, raise_config_errors
from rlinf_scheduler.hardware.kinds import WholeNumber
from rlinf_scheduler.hardware.profilers import PROGRAMS, TORCH_FLAGS, ProfilingConfig
from rlinf_scheduler.wording import did_you_mean

_PATH = "cluster.profiling"
BACKENDS = (*PROGRAMS, "torch")
_STOPS = {
    **dict.fromkeys(("true", "1", "yes", "on"), "stop"),
    **dict.fromkeys(("false", "0", "no", "off"), "none"),
}
# Another name of `capture-range-end`, which Nsight itself has given up.
_STOP_ON_RANGE_END, _CAPTURE_RANGE_END = "stop-on-range-end", "capture-range-end"


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value


Text = Annotated[str, BeforeValidator(_as_text)]
Names = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_as_list)]
Texts = dict[Annotated[str, Field(min_length=1)], Text]


class _ProfilingSection(Section):
    enabled: bool = True
    worker_groups: Names | None = None
    ranks: NodeRanks = None
    steps: list[Annotated[WholeNumber, Field(ge=0)]] | None = None
    output_dir: str | None = None
    tool: str | None = None


class _NsightSection(_ProfilingSection):
    backend: Literal["nsight"]
    options: Texts | None = None
    flags: Names | None = None


class _RocprofSection(_ProfilingSection):
    backend: Literal["rocprof_sys"]
    args: Texts | None = None
    env: Texts | None = None


class _TorchSection(_ProfilingSection):
    backend: Literal["torch"]
    steps: list[Annotated[WholeNumber, Field(ge=0)]]  # it keeps all that it sees in memory
    flags: Names | None = None
    tool: None = None


_SECTIONS: dict[str, type[_NsightSection | _RocprofSection | _TorchSection]] = {
    "nsight": _NsightSection,
    "rocprof_sys": _RocprofSection,
    "torch": _TorchSection,
}


def read_profiling(value: Any) -> ProfilingConfig | None:
    """The section, checked; None where there is none.

    Raises:
        ConfigError: it has a mistake; `ConfigErrors` for several.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"this must be a mapping, not {shown(value)}", path=_PATH, hint="write backend: nsight"
        )
    backend = value.get("backend")
    if backend not in BACKENDS:
        found = "is missing" if backend is None else f"is {shown(backend)}"
        raise ConfigError(f"the profiler {found}: it is {' or '.join(BACKENDS)}", path=f"{_PATH}.backend")
    section, errors = check(_SECTIONS[backend], value, _PATH)
    raise_config_errors(errors)
    if section is None:
        return None  # never: then there are errors
    options, flags, env = _given_to_tool(section)
    return ProfilingConfig(
        backend=section.backend,
        enabled=section.enabled,
        worker_groups=tuple(section.worker_groups or ()),
        ranks=section.ranks,
        steps=None if section.steps is None else tuple(section.steps),
        output_dir=section.output_dir or "",
        tool=section.tool or "",
        options=tuple(options.items()),
        flags=flags,
        env=tuple(env.items()),
    )


def _given_to_tool(
    section: _NsightSection | _RocprofSection | _TorchSection,
) -> tuple[dict[str, str], tuple[str, ...], dict[str, str]]:
    if isinstance(section, _NsightSection):
        return _nsight_options(section), tuple(section.flags or ()), {}
    if isinstance(section, _RocprofSection):
        return section.args or {}, (), section.env or {}
    flags = tuple(section.flags or ())
    if unknown := [flag for flag in flags if flag not in TORCH_FLAGS]:
        problem = f"'{unknown[0]}' is nothing that torch's profiler does; there are {', '.join(TORCH_FLAGS)}"
        raise ConfigError(problem, path=f"{_PATH}.flags", hint=did_you_mean(unknown[0], TORCH_FLAGS))
    return {}, flags, {}


def _nsight_options(section: _NsightSection) -> dict[str, str]:
    options = dict(section.options or {})
    for one, other in ((_STOP_ON_RANGE_END, _CAPTURE_RANGE_END), ("o", "output")):
        if one in options and other in options:
            problem = f"{one} and {other} are two names of one option: give one of them"
            raise ConfigError(problem, path=f"{_PATH}.options.{one}")
    if _STOP_ON_RANGE_END in options:
        told = options.pop(_STOP_ON_RANGE_END)
        options[_CAPTURE_RANGE_END] = _STOPS.get(told.strip().lower(), told)
    if section.steps is not None:
        # Without it Nsight records all the time, whatever windows are opened.
        options.setdefault("capture-range", "cudaProfilerApi")
        options.setdefault(_CAPTURE_RANGE_END, "stop")
    both = sorted(options.keys() & set(section.flags or ()))
    if both:
        problem = f"{', '.join(both)} stands here with a value and, under flags, without one"
        raise ConfigError(problem, path=f"{_PATH}.options")
    return options
