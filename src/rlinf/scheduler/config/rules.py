"""`component_placement:`: whatever form an entry is written in, as the text that the planner reads."""

from __future__ import annotations

from typing import Any

from rlinf.scheduler.config.findings import shown, unknown_key
from rlinf.scheduler.config.schema import read_label
from rlinf.scheduler.errors import ConfigError, PlacementError
from rlinf.scheduler.placement import CLUSTER_GROUP, PlacementRule

_RULE_KEYS = ["node_group", "placement"]


def read_rules(
    value: Any, path: str, errors: list[ConfigError], *, numbers_as_written: bool
) -> list[PlacementRule]:
    """The entries that can be read; what is wrong with the others goes into `errors`.

    Args:
        value: plain data.
        path: where it stands in the config.
        errors: found mistakes are added.
        numbers_as_written: whether a number is certain not to be a `1:0` that a loader has read as 60.
    """
    if value is None:
        return []
    if not isinstance(value, dict):
        errors.append(ConfigError(f"this maps components to placements; it is {shown(value)}", path=path))
        return []
    rules: list[PlacementRule] = []
    seen: set[str] = set()
    for key, entry in value.items():
        place = f"{path}.{key}"
        try:
            components = _components(key, seen)
            rules.append(_rule(components, entry, place, numbers_as_written))
        except ConfigError as error:
            errors.append(error.at(path=place, component=key))
    return rules


def _components(key: str, seen: set[str]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in key.split(","))
    for name in names:
        if not name:
            raise PlacementError("a component's name is empty; names are separated by one comma")
        if name in seen:
            raise PlacementError(f"component '{name}' is placed twice")
        seen.add(name)
    return names


def _rule(components: tuple[str, ...], entry: Any, path: str, numbers_as_written: bool) -> PlacementRule:
    if not isinstance(entry, dict):
        text = _placement_text(entry, numbers_as_written)
        return PlacementRule(components, text, path=path, text_path=path, groups_path=path)
    unknown = [key for key in entry if key not in _RULE_KEYS]
    if unknown:
        raise unknown_key(unknown[0], _RULE_KEYS, f"{path}.{unknown[0]}")
    if "placement" not in entry:
        raise PlacementError("the key 'placement' is missing")
    text_path, groups_path = f"{path}.placement", f"{path}.node_group"
    try:
        text = _placement_text(entry["placement"], numbers_as_written)
    except ConfigError as error:
        raise error.at(path=text_path) from None
    try:
        labels = _labels(entry.get("node_group"))
    except ConfigError as error:
        raise error.at(path=groups_path) from None
    return PlacementRule(components, text, labels, path, text_path, groups_path)


def _labels(value: Any) -> tuple[str, ...]:
    if value is None:
        return (CLUSTER_GROUP,)
    parts = value if isinstance(value, list) else [value]
    labels = tuple(label.strip() for part in parts for label in read_label(part).split(","))
    if not labels or not all(labels):
        raise PlacementError(f"a node group's label is missing in {shown(value)}")
    return labels


def _placement_text(value: Any, numbers_as_written: bool) -> str:
    """The text of a placement that is written as text, a number, or a list of both."""
    if value is None or value == []:
        raise PlacementError("the placement is empty")
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, (str, int)):
            raise PlacementError(
                f"a placement is text, a number, or a list of these; here it is {shown(part)}",
                hint="0-1:0-3 puts processes 0-3 on resources 0-1",
            )
        if isinstance(part, int) and part >= 60 and not numbers_as_written:
            raise _ambiguous_number(part)
    return ",".join(map(str, parts))


def _ambiguous_number(number: int) -> PlacementError:
    written = f"{number // 60}:{number % 60}"
    return PlacementError(
        f"{number} is a number, and may have been written {written}: YAML 1.1 reads that, without quotes, as {number}",
        hint=f"put it in quotes, '{written}' or '{number}'",
    )
