"""The shape of a node group in the file, and pydantic's findings in the words of our errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from rlinf.scheduler.errors import ConfigError
from rlinf.scheduler.placement import nearest_name, parse_ranks

Model = TypeVar("Model", bound=BaseModel)


def read_ranks(value: Any) -> tuple[int, ...]:
    """Ranks from text such as "0-2,5", a number, or a list of these.

    Raises:
        ConfigError: it is none of these, or names a rank twice.
    """
    return parse_ranks(_as_text(value, "ranks are a number, text such as 0-3, or a list of these"))


def read_label(value: Any) -> str:
    """A node group's label; a number is taken as the text it is written as.

    Raises:
        ConfigError: it is neither text nor a number.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ConfigError(f"a label is text, not {shown(value)}")
    return str(value).strip()


def read_environment(value: Any) -> tuple[tuple[str, str], ...]:
    """Environment variables from a mapping, or a list of mappings.

    Raises:
        ConfigError: it is neither, a value is neither text nor a number, or a variable stands there twice.
    """
    variables: dict[str, str] = {}
    for entry in value if isinstance(value, list) else [value]:
        if not isinstance(entry, Mapping):
            raise ConfigError(f"variables are a mapping or a list of mappings, not {shown(entry)}")
        for name, setting in entry.items():
            if name in variables:
                raise ConfigError(f"the variable {name} stands here twice")
            if isinstance(setting, bool) or not isinstance(setting, (str, int, float)):
                raise ConfigError(f"the value of {name} is {shown(setting)}: write it as text, in quotes")
            variables[name] = str(setting)
    return tuple(variables.items())


def _as_text(value: Any, rule: str) -> str:
    parts = value if isinstance(value, list) else [value]
    if not parts or any(isinstance(part, bool) or not isinstance(part, (str, int)) for part in parts):
        raise ConfigError(f"{rule}; here it is {shown(value)}")
    return ",".join(map(str, parts))


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Ranks = Annotated[tuple[int, ...], PlainValidator(read_ranks)]


class HardwareSection(_Section):
    """`hardware:` of a node group; `configs` are checked by type afterwards."""

    type: str
    configs: Annotated[list[dict[str, Any]], Field(min_length=1)]


class EnvironmentSection(_Section):
    """An entry of `env_configs:`."""

    node_ranks: Ranks | None = None
    env_vars: Annotated[tuple[tuple[str, str], ...], PlainValidator(read_environment)] = ()
    python_interpreter_path: str | None = None


class NodeGroupSection(_Section):
    """An entry of `node_groups:`."""

    label: Annotated[str, PlainValidator(read_label)]
    node_ranks: Ranks
    hardware: HardwareSection | None = None
    ignore_hardware: bool = False
    env_configs: list[EnvironmentSection] | None = None


_INNER: dict[str, type[BaseModel]] = {"hardware": HardwareSection, "env_configs": EnvironmentSection}


def check(model: type[Model], value: Any, path: str) -> tuple[Model | None, list[ConfigError]]:
    """The value as a model, or every mistake in it.

    Args:
        model: the shape that it must have.
        value: plain data.
        path: where it stands in the config.
    """
    try:
        return model.model_validate(value), []
    except ValidationError as error:
        found = error.errors(include_url=False)
    return None, [_in_our_words(model, details, path) for details in found]


def unknown_key(key: str, known: list[str], path: str) -> ConfigError:
    """The error for a key that means nothing there."""
    near = nearest_name(key, known)
    hint = f"did you mean '{near}'?" if near else ""
    return ConfigError(f"unknown key '{key}'; there are {', '.join(known)}", path=path, hint=hint)


def shown(value: Any) -> str:
    """A value in an error text, shortened."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _in_our_words(model: type[BaseModel], details: Mapping[str, Any], path: str) -> ConfigError:
    location = details["loc"]
    place = path + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    original = details.get("ctx", {}).get("error")
    if isinstance(original, ConfigError):
        return original.at(path=place)
    if details["type"] == "extra_forbidden":
        return unknown_key(str(location[-1]), list(_model_at(model, location[:-1]).model_fields), place)
    if details["type"] == "missing":
        parent, _, key = place.rpartition(".")
        return ConfigError(f"the key '{key}' is missing", path=parent)
    wanted = _WANTED.get(details["type"], details["msg"]).format_map(details.get("ctx", {}))
    return ConfigError(f"{wanted}, not {shown(details['input'])}", path=place)


_WANTED = {
    "int_type": "this is a whole number",
    "bool_type": "this is true or false",
    "string_type": "this is text",
    "list_type": "this is a list",
    "dict_type": "this is a mapping",
    "model_type": "this is a mapping",
    "too_short": "there must be at least one",
    "greater_than_equal": "this is at least {ge}",
}


def _model_at(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    for part in location:
        model = _INNER.get(str(part), model)
    return model
