"""What pydantic finds wrong with a value, in the words of our errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from rlinf.scheduler.errors import ConfigError, ConfigErrors, UnknownKey
from rlinf.scheduler.wording import did_you_mean, nearest_name

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
    meant = _meant(model, found)
    errors: list[ConfigError] = []
    for details in found:
        if details["loc"] in meant:
            errors.append(_misspelt(model, details["loc"], meant[details["loc"]], path))
        elif details["type"] != "missing" or details["loc"] not in meant.values():
            errors.extend(_in_our_words(model, details, path).each())
    return None, errors


def unknown_key(key: str, known: list[str], path: str) -> UnknownKey:
    """The error for a key that means nothing there."""
    problem = f"unknown key '{key}'; there are {', '.join(known)}"
    return UnknownKey(problem, path=path, hint=did_you_mean(key, known))


def is_near(name: str, others: Iterable[str]) -> bool:
    """Whether one of the others is spelt much like it: a key that is missing under one of them is misspelt."""
    return bool(nearest_name(name, others))


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


def _meant(model: type[BaseModel], found: list[Any]) -> dict[_Location, _Location]:
    """Which unknown key stands for which missing one, beside it: that is one mistake, not two.

    It is one that is spelt much like it; else the only one that is like no key at all for the only one that is missing.
    """
    unknown = [details["loc"] for details in found if details["type"] == "extra_forbidden"]
    missing = [details["loc"] for details in found if details["type"] == "missing"]
    meant: dict[_Location, _Location] = {}
    for lost in missing:
        like = [key for key in _beside(lost, unknown) if is_near(str(lost[-1]), [str(key[-1])])]
        meant.update(dict.fromkeys(like[:1], lost))
    for lost in missing:
        known = _known_keys(model, lost[:-1])
        strange = [key for key in _beside(lost, unknown) if not is_near(str(key[-1]), known)]
        others = [each for each in _beside(lost, missing) if each not in meant.values()]
        if len(strange) == 1 and others == [lost]:
            meant[strange[0]] = lost
    return meant


def _beside(location: _Location, others: list[_Location]) -> list[_Location]:
    return [other for other in others if other[:-1] == location[:-1]]


def _misspelt(model: type[BaseModel], key: _Location, missing: _Location, path: str) -> ConfigError:
    error = unknown_key(str(key[-1]), _known_keys(model, key[:-1]), _place(path, key))
    hint = f"did you mean '{missing[-1]}'? It is missing"
    return error if error.hint else type(error)(error.problem, path=error.path, hint=hint)


def _in_our_words(model: type[BaseModel], details: Mapping[str, Any], path: str) -> ConfigError:
    location = details["loc"]
    place = _place(path, location)
    original = details.get("ctx", {}).get("error")
    if isinstance(original, ConfigError):
        return _within(original, place)
    if details["type"] in ("value_error", "assertion_error"):
        return ConfigError(str(original), path=place)
    if details["type"] == "extra_forbidden":
        return unknown_key(str(location[-1]), _known_keys(model, location[:-1]), place)
    if details["type"] == "missing":
        parent, _, key = place.rpartition(".")
        return ConfigError(f"the key '{key}' is missing", path=parent)
    wanted = _WANTED.get(details["type"], details["msg"]).format_map(details.get("ctx", {}))
    hint = _YAML_1_1_BOOLS.get(str(details["input"]).lower(), "") if details["type"] == "bool_type" else ""
    return ConfigError(f"{wanted}, not {shown(details['input'])}", path=place, hint=hint)


def _place(path: str, location: _Location) -> str:
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
    return list(model.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that an annotation such as `list[Model] | None` speaks of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)
