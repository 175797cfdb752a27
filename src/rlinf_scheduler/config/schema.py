"""The shape of a node group in the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainValidator

from rlinf_scheduler.checks import is_text_or_number
from rlinf_scheduler.config.findings import shown
from rlinf_scheduler.errors import ConfigError, raise_config_errors
from rlinf_scheduler.hardware.vendors import VENDORS
from rlinf_scheduler.planning import parse_ranks
from rlinf_scheduler.planning.environments import LAUNCH_VARIABLES
from rlinf_scheduler.planning.node_groups import PathMerge

_MASKS = frozenset(vendor.visibility_variable for vendor in VENDORS)


def read_ranks(value: Any) -> tuple[int, ...] | None:
    """Ranks from text such as "0-2,5", a number, or a list of these; None stands for `all` of them.

    Raises:
        ConfigError: it is none of these, or names a rank twice.
    """
    text = _as_text(value, "ranks must be a number, text such as 0-3, all, or a list of these")
    return None if text.strip().lower() == "all" else parse_ranks(text)


def read_label(value: Any) -> str:
    """A node group's label; a number is taken as the text it is written as.

    Raises:
        ConfigError: it is neither text nor a number.
    """
    if not is_text_or_number(value):
        raise ConfigError(f"a label must be text, not {shown(value)}")
    return str(value).strip()


def read_names(value: Any) -> tuple[str, ...]:
    """Names from text with commas between them, or a list: of node groups, of components.

    Raises:
        ConfigError: a name is no text, or is missing.
    """
    parts = value if isinstance(value, list) else [value]
    names = tuple(name.strip() for part in parts for name in read_label(part).split(","))
    if not names or not all(names):
        raise ConfigError(f"a name is missing in {shown(value)}")
    return names


def read_settings(value: Any) -> tuple[tuple[str, str], ...]:
    """Labels with their values, from a mapping.

    Raises:
        ConfigError: it is none, or a value is neither text nor a whole number.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"this must be a mapping of labels to values, not {shown(value)}")
    return tuple((str(name), read_label(each)) for name, each in value.items())


def read_environment(value: Any) -> tuple[tuple[str, str], ...]:
    """Environment variables from a mapping, or a list of mappings.

    Raises:
        ConfigError: it is neither, a value is neither text nor a whole number, or a variable stands there twice or
            is one that the launch sets. The path in it goes on from that of the value.
    """
    variables: dict[str, str] = {}
    errors: list[ConfigError] = []
    for place, entry in (
        [(f"[{i}]", e) for i, e in enumerate(value)] if isinstance(value, list) else [("", value)]
    ):
        if not isinstance(entry, Mapping):
            problem = f"variables must be a mapping or a list of mappings, not {shown(entry)}"
            errors.append(ConfigError(problem, path=place, hint=_as_mapping(entry)))
            continue
        for name, setting in entry.items():
            try:
                _check_variable(name, setting, variables)
            except ConfigError as error:
                errors.append(error.at(path=f"{place}.{name}"))
            variables[name] = str(setting)
    raise_config_errors(errors)
    return tuple(variables.items())


def _check_variable(name: str, setting: Any, before: Mapping[str, str]) -> None:
    if not name or "=" in name or "\0" in name:
        raise ConfigError(f"{name!r} is no name of a variable")
    if name in LAUNCH_VARIABLES:
        raise ConfigError(f"{name} is set by the launch, separately for every process")
    if name in _MASKS:
        hint = (
            "the placement says which accelerators a process sees; a mask that a node is started with counts"
        )
        raise ConfigError(f"{name} is set by the launch, separately for every process", hint=hint)
    if name in before:
        raise ConfigError(f"the variable {name} stands here twice")
    # A fraction that another loader read does not keep how it was written: 2.10 would arrive as 2.1.
    if not is_text_or_number(setting):
        raise ConfigError(f"the value of {name} is {shown(setting)}: write it as text, in quotes")
    if "\0" in str(setting):
        raise ConfigError(f"the value of {name} holds a zero byte")


def _as_mapping(entry: Any) -> str:
    name, equals, value = str(entry).partition("=") if isinstance(entry, str) else ("", "", "")
    return f"write {name.strip()}: '{value.strip()}'" if equals else ""


def _as_text(value: Any, rule: str) -> str:
    parts = value if isinstance(value, list) else [value]
    if not parts or not all(map(is_text_or_number, parts)):
        raise ConfigError(f"{rule}; here it is {shown(value)}")
    return ",".join(map(str, parts))


class Section(BaseModel):
    """What a file says under one key: nothing but what is known, and of the types that are."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


NodeRanks = Annotated[tuple[int, ...] | None, PlainValidator(read_ranks)]


class HardwareSection(Section):
    """`hardware:` of a node group; `configs` are checked by type afterwards."""

    type: str
    configs: list[dict[str, Any]]


class EnvironmentSection(Section):
    """An entry of `env_configs:`."""

    node_ranks: NodeRanks = None
    env_vars: Annotated[tuple[tuple[str, str], ...], PlainValidator(read_environment)] = ()
    python_interpreter_path: str | None = None
    path_variables: PathMerge | None = None


class NodeGroupSection(Section):
    """An entry of `node_groups:`."""

    label: Annotated[str, PlainValidator(read_label)]
    node_ranks: NodeRanks
    hardware: HardwareSection | None = None
    ignore_hardware: bool = False
    env_configs: list[EnvironmentSection] | None = None


class TracerSection(Section):
    """`tracer:`, a trace of the whole job."""

    enable: bool = False
    output_file: str | None = None
