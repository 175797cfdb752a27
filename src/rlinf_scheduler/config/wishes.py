"""An entry of `component_placement:` that says what a place must be, read into a wish."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from rlinf_scheduler.checks import is_text_or_number
from rlinf_scheduler.config.findings import check, shown
from rlinf_scheduler.config.schema import Section, read_names, read_settings
from rlinf_scheduler.errors import ConfigError, ConfigErrors
from rlinf_scheduler.planning import Bound, PlacementWish, Properties
from rlinf_scheduler.planning.node_groups import CLUSTER_GROUP

WISH_KEYS = ["count", "per_node", "processes", "same", "beside", "not_with", "with"]


def is_wish(entry: Any) -> bool:
    """Return whether an entry leaves its numbers to the planner."""
    if not isinstance(entry, Mapping) or "placement" in entry:
        return False
    return isinstance(entry.get("node_group"), Mapping) or not entry.keys().isdisjoint(WISH_KEYS)


def read_wish(
    components: tuple[str, ...], entry: Mapping[str, Any], path: str
) -> tuple[PlacementWish | None, list[ConfigError]]:
    """Return the wish that an entry holds, or every mistake in it."""
    section, errors = check(_WishSection, entry, path)
    if section is None:
        return None, errors
    group = section.node_group
    wish = PlacementWish(
        components,
        group if isinstance(group, tuple) else (CLUSTER_GROUP,),
        group if isinstance(group, Properties) else Properties(),
        section.count,
        section.per_node,
        section.processes,
        section.same or "",
        section.beside,
        section.not_with,
        section.sharing,
        path,
    )
    return wish, []


def _read_bound(value: Any) -> Bound:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ConfigError(f"this must be a number, or one behind a sign such as '>=80', not {shown(value)}")
    return Bound.parse(str(value))


def _read_text(value: Any) -> str:
    if not is_text_or_number(value) or not str(value).strip():
        raise ConfigError(f"this must be text, not {shown(value)}")
    return str(value).strip()


_Text = Annotated[str, PlainValidator(_read_text)]
_Bound = Annotated[Bound | None, PlainValidator(_read_bound)]


class _PropertiesSection(Section):
    """`node_group:` as a mapping: what its nodes must be."""

    gpu: _Text = ""
    vendor: _Text = ""
    memory_gb: _Bound = None
    accelerators: _Bound = None
    label: Annotated[tuple[tuple[str, str], ...], PlainValidator(read_settings)] = ()


def _read_group(value: Any) -> Properties | tuple[str, ...]:
    if isinstance(value, Mapping):
        section, errors = check(_PropertiesSection, value, "")
        if section is None:
            raise ConfigErrors(errors)
        return Properties(**dict(section))
    return read_names(value)


def _read_count(value: Any) -> int | None:
    if value == "all":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"this must be a whole number from 1, or all, not {shown(value)}")
    return value


_Names = Annotated[tuple[str, ...], PlainValidator(read_names)]
_Size = Annotated[int, Field(ge=1)]


class _WishSection(Section):
    """The entry."""

    node_group: Annotated[Properties | tuple[str, ...] | None, PlainValidator(_read_group)] = None
    count: Annotated[int | None, PlainValidator(_read_count)] = None
    per_node: _Size | None = None
    processes: _Size | None = None
    same: Literal["node", "island"] | None = None
    beside: _Names = ()
    not_with: _Names = ()
    sharing: _Names = Field(default=(), alias="with")
