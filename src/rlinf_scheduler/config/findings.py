"""What pydantic finds wrong with a value, in the words of our errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from rlinf_scheduler.errors import ConfigError, ConfigErrors, UnknownKey
from rlinf_scheduler.wording import did_you_mean, nearest_name

Model = TypeVar("Model", bound=BaseModel)

# The keys and indices that lead to a value.
_Location = tuple[int | str, ...]


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
    except Exception as error:  # noqa: BLE001 - a validator of somebody's plug-in may raise anything
        problem = f"{model.__module__}.{model.__qualname__} cannot read it: {type(error).__name__}: {error}"
        return None, [ConfigError(problem, path=path)]
    missing = _keys_by_place(found, "missing")
    unknown = _keys_by_place(found, "extra_forbidden")
    known = {place: _known_keys(model, place) for place in (*missing, *unknown)}
    meant = {
        place: misspelt_keys(unknown.get(place, []), missing.get(place, []), keys)
        for place, keys in known.items()
    }
    errors: list[ConfigError] = []
    for details in found:
        *place, key = details["loc"] or ("",)
        there = tuple(place)
        if details["type"] == "extra_forbidden":
            stands_for = meant[there].get(str(key), "")
            errors.append(unknown_key(str(key), known[there], _path(path, details["loc"]), stands_for))
        elif details["type"] != "missing" or str(key) not in meant[there].values():
            errors.extend(_in_our_words(details, path).each())
    return None, errors


def misspelt_keys(unknown: list[str], missing: list[str], known: list[str]) -> dict[str, str]:
    """Which unknown key stands for which missing one, beside it: that is one mistake, not two.

    It is one that is spelt much like it; else the only one that is like no key at all, for the only one missing.

    >>> misspelt_keys(["adress", "color"], ["address", "port"], ["address", "port"])
    {'adress': 'address', 'color': 'port'}
    """
    meant: dict[str, str] = {}
    for key in missing:
        like = nearest_name(key, [each for each in unknown if each not in meant])
        if like:
            meant[like] = key
    lost = [key for key in missing if key not in meant.values()]
    strange = [key for key in unknown if key not in meant and not nearest_name(key, known)]
    if len(lost) == len(strange) == 1:
        meant[strange[0]] = lost[0]
    return meant


def unknown_key(key: str, known: list[str], path: str, missing: str = "") -> UnknownKey:
    """The error for a key that means nothing there; `missing` is the key that it may stand for."""
    problem = f"unknown key '{key}'; there are {', '.join(known)}"
    hint = f"did you mean '{missing}'? It is missing" if missing else ""
    return UnknownKey(problem, path=path, hint=did_you_mean(key, known) or hint)


def shown(value: Any) -> str:
    """A value in an error text, shortened."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_WANTED = {
    "int_type": "this must be a whole number",
    "float_type": "this must be a number",
    "bool_type": "this must be true or false",
    "string_type": "this must be text",
    "list_type": "this must be a list",
    "tuple_type": "this must be a list",
    "dict_type": "this must be a mapping",
    "model_type": "this must be a mapping",
    "too_short": "there must be at least one entry",
    "greater_than": "this must be more than {gt}",
    "greater_than_equal": "this must be at least {ge}",
    "less_than": "this must be less than {lt}",
    "less_than_equal": "this must be at most {le}",
    "literal_error": "this must be {expected}",
}


_YAML_1_1_BOOLS = {
    **dict.fromkeys(("yes", "on", "y"), "write true"),
    **dict.fromkeys(("no", "off", "n"), "write false"),
}


def _keys_by_place(found: list[Any], kind: str) -> dict[_Location, list[str]]:
    keys: dict[_Location, list[str]] = {}
    for details in found:
        if details["type"] == kind:
            keys.setdefault(details["loc"][:-1], []).append(str(details["loc"][-1]))
    return keys


def _in_our_words(details: Mapping[str, Any], path: str) -> ConfigError:
    location = details["loc"]
    place = _path(path, location)
    original = details.get("ctx", {}).get("error")
    if isinstance(original, ConfigError):
        return _within(original, place)
    if details["type"] in ("value_error", "assertion_error"):
        return ConfigError(str(original), path=place)
    if details["type"] == "missing":
        parent, _, key = place.rpartition(".")
        return ConfigError(f"the key '{key}' is missing", path=parent)
    wanted = _WANTED.get(details["type"], details["msg"]).format_map(details.get("ctx", {}))
    hint = _YAML_1_1_BOOLS.get(str(details["input"]).lower(), "") if details["type"] == "bool_type" else ""
    return ConfigError(f"{wanted}, not {shown(details['input'])}", path=place, hint=hint)


def _path(path: str, location: _Location) -> str:
    return path + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


def _within(error: ConfigError, place: str) -> ConfigError:
    """The error with its path; one that begins with a separator goes on from the place."""
    if isinstance(error, ConfigErrors):
        return type(error)([_within(each, place) for each in error.errors])
    if not error.path.startswith((".", "[")):
        return error.at(path=place)
    rest = (error.component, error.text, error.span, error.hint, error.file)
    return type(error)(error.problem, place + error.path, *rest)


def _known_keys(model: type[BaseModel], location: _Location) -> list[str]:
    for part in location:
        field = model.model_fields.get(str(part))
        if field is not None:
            model = next(_models_in(field.annotation), model)
    return [field.alias or name for name, field in model.model_fields.items()]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that an annotation such as `list[Model] | None` speaks of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)
