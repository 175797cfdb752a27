"""`component_placement:`: whatever form an entry is written in, as the text that the planner reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rlinf_scheduler.checks import is_text_or_number
from rlinf_scheduler.config.findings import misspelt_keys, shown, unknown_key
from rlinf_scheduler.config.schema import read_names
from rlinf_scheduler.config.wishes import WISH_KEYS, is_wish, read_wish
from rlinf_scheduler.errors import ConfigError, PlacementError
from rlinf_scheduler.planning import CLUSTER_GROUP, PlacementRule, PlacementWish, parse_segments
from rlinf_scheduler.planning.grammar import error_at

Value = TypeVar("Value")

_RULE_KEYS = ["node_group", "placement"]
_PLACED = (
    "`placement` says where it is, and `{key}` is for a place that is to be found: leave one of them out"
)
_MISSING = object()


def read_rules(
    value: Any, path: str, errors: list[ConfigError], *, numbers_as_written: bool
) -> list[PlacementRule | PlacementWish]:
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
        hint = "write the components without '- ' before them" if isinstance(value, list) else ""
        problem = f"this must be a mapping of components to placements, not {shown(value)}"
        errors.append(ConfigError(problem, path=path, hint=hint))
        return []
    rules: list[PlacementRule | PlacementWish] = []
    seen: set[str] = set()
    for key, entry in value.items():
        place = f"{path}.{key}"
        reader = _RuleReader(key, place, numbers_as_written)
        rule = reader.read(entry, seen)
        errors.extend(error.at(path=place, component=key) for error in reader.errors)
        if rule is not None:
            rules.append(rule)
    return rules


class _RuleReader:
    """Reads one entry, and gathers everything that is wrong with it."""

    def __init__(self, key: str, path: str, numbers_as_written: bool) -> None:
        self.errors: list[ConfigError] = []
        self._key = key
        self._path = path
        self._numbers_as_written = numbers_as_written

    def read(self, entry: Any, seen: set[str]) -> PlacementRule | PlacementWish | None:
        """The rule, or None where there is a mistake."""
        components = self._components(seen)
        if is_wish(entry):
            wish, found = read_wish(components, entry, self._path)
            self.errors.extend(found)
            return None if self.errors else wish
        text_path = groups_path = self._path
        labels: tuple[str, ...] | None = (CLUSTER_GROUP,)
        written = entry
        if isinstance(entry, dict):
            text_path, groups_path = f"{self._path}.placement", f"{self._path}.node_group"
            written = self._placement_of(entry)
            labels = self._attempt(_labels, entry.get("node_group"), groups_path)
        text = None
        if written is not _MISSING:
            text = self._attempt(self._placement_text, written, text_path)
        if text is None:
            return None
        if labels is None or self.errors:
            # It makes no rule, so its text is checked here or nowhere.
            self._attempt(parse_segments, text, text_path)
            return None
        paths = {"path": self._path, "text_path": text_path, "groups_path": groups_path}
        return self._attempt(
            lambda written: PlacementRule(components, written, labels, **paths), text, text_path
        )

    def _components(self, seen: set[str]) -> tuple[str, ...]:
        names = []
        start = 0
        for part in self._key.split(","):
            name = part.strip()
            spot = (start, start + max(1, len(part)))
            if not name:
                problem = "a component's name is empty; names are separated by one comma"
                shown_key, spot = (self._key, spot) if self._key else ('""', (0, 2))
                self.errors.append(error_at(shown_key, spot, problem))
            elif name in seen:
                self.errors.append(error_at(self._key, spot, f"component '{name}' is placed twice"))
            seen.add(name)
            names.append(name)
            start += len(part) + 1
        return tuple(names)

    def _placement_of(self, entry: dict[str, Any]) -> Any:
        unknown = [key for key in entry if key not in _RULE_KEYS]
        missing = [] if "placement" in entry else ["placement"]
        meant = misspelt_keys(unknown, missing, _RULE_KEYS)
        for key in unknown:
            path = f"{self._path}.{key}"
            if key in WISH_KEYS:
                self.errors.append(PlacementError(_PLACED.format(key=key), path=path))
            else:
                self.errors.append(unknown_key(key, [*_RULE_KEYS, *WISH_KEYS], path, meant.get(key, "")))
        if missing and not meant:
            self.errors.append(PlacementError("the key 'placement' is missing"))
        return entry.get("placement", _MISSING)

    def _attempt(self, read: Callable[[Any], Value], value: Any, path: str) -> Value | None:
        try:
            return read(value)
        except ConfigError as error:
            self.errors.extend(each.at(path=path) for each in error.each())
            return None

    def _placement_text(self, value: Any) -> str:
        """The text of a placement that is written as text, a number, or a list of both."""
        if value is None or (isinstance(value, list) and not value):
            raise PlacementError("the placement is empty")
        parts = value if isinstance(value, list) else [value]
        for part in parts:
            if not is_text_or_number(part):
                raise PlacementError(
                    f"a placement must be text, a number, or a list of these; here it is {shown(part)}",
                    hint="0-1:0-3 puts processes 0-3 on resources 0-1",
                )
            if isinstance(part, int) and part >= 60 and not self._numbers_as_written:
                raise _ambiguous_number(part)
        return ",".join(map(str, parts))


def _labels(value: Any) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        raise PlacementError(
            "`placement` says where it is, and properties are for a place that is to be found: leave one of them out"
        )
    return (CLUSTER_GROUP,) if value is None else read_names(value)


def _ambiguous_number(number: int) -> PlacementError:
    written = f"{number // 60}:{number % 60}"
    return PlacementError(
        f"{number} is a number, and may have been written {written}: YAML 1.1 reads that, without quotes, as {number}",
        hint=f"put it in quotes, '{written}' or '{number}'",
    )
