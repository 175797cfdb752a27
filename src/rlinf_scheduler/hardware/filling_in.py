"""Settings of declared hardware that a config leaves out, taken from the variables of its node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.hardware.kinds import HardwareType
from rlinf_scheduler.hardware.registry import hardware_type
from rlinf_scheduler.planning import HardwareUnit, Node, NodeGroup
from rlinf_scheduler.wording import counted

_WORDS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def fill_in_groups(groups: Iterable[NodeGroup], nodes: Sequence[Node]) -> list[NodeGroup]:
    """The groups with what their nodes' variables say of their hardware.

    One piece on a node takes a variable's whole value, several take one part each, separated by commas, in the order
    in which the config lists them. What the config says stays. A node for which the group lists no piece has as many
    as the type's `identifiers` have parts there, with all that the node's variables say.

    Raises:
        ConfigError: a variable has another number of parts, or one that the setting cannot be.
    """
    return [_filled(group.on(len(nodes)), nodes) if group.hardware_type else group for group in groups]


def found_on(node: Node, node_rank: int, kind: HardwareType, path: str = "") -> list[HardwareUnit]:
    """The pieces that a node's variables tell of, where no config lists any.

    Raises:
        ConfigError: as above.
    """
    variables = dict(node.variables)
    counts = {
        name.upper(): len(variables[name.upper()].split(","))
        for name in kind.identifiers
        if name.upper() in variables
    }
    if len(set(counts.values())) > 1:
        told = " and ".join(f"{count} in {name}" for name, count in counts.items())
        problem = f"node {node_rank} names {told}, separated by commas: they are of the same {kind.name}s"
        raise ConfigError(problem, path=path)
    number = next(iter(counts.values()), 0)
    settings = [{"node_rank": node_rank} for _ in range(number)]
    return _units(kind, settings, variables, path, listed=False)


def _filled(group: NodeGroup, nodes: Sequence[Node]) -> NodeGroup:
    kind = hardware_type(group.hardware_type)
    if not kind.fills_in or not any(nodes[rank].variables for rank in group.node_ranks if rank < len(nodes)):
        return group
    path = group.path_of("hardware")
    listed = {unit.node_rank for unit in group.hardware}
    units = list(group.hardware)
    for rank in group.node_ranks:
        if rank >= len(nodes):
            continue  # an error of its own
        if rank not in listed:
            units += found_on(nodes[rank], rank, kind, path)
            continue
        places = [index for index, unit in enumerate(units) if unit.node_rank == rank]
        settings = [_given(units[index].config) for index in places]
        filled = _units(kind, settings, dict(nodes[rank].variables), path, listed=True)
        for index, unit in zip(places, filled, strict=True):
            units[index] = unit
    return replace(group, hardware=tuple(units))


def _given(config: Any) -> dict[str, Any]:
    """The settings that a config holds, all but those that stand for nothing."""
    return {
        name: getattr(config, name)
        for name in type(config).model_fields
        if name in config.model_fields_set and getattr(config, name) is not None
    } | {"node_rank": config.node_rank}


def _units(
    kind: HardwareType,
    pieces: list[dict[str, Any]],
    variables: Mapping[str, str],
    path: str,
    *,
    listed: bool,
) -> list[HardwareUnit]:
    if not pieces:
        return []
    node_rank = pieces[0]["node_rank"]
    for name, field in _fillable(kind).items():
        value = variables.get(name.upper())
        # A config that lists a piece has left it its defaults.
        lacking = [p for p in pieces if name not in p and (not listed or field.default is None)]
        if value is None or not lacking:
            continue
        parts = [value] if len(pieces) == 1 else [part.strip() for part in value.split(",")]
        if len(parts) != len(pieces):
            values = counted(len(parts), "comma-separated value")
            problem = f"{name.upper()} of node {node_rank} has {values} for {len(pieces)} {kind.name}s"
            raise ConfigError(problem, path=path, hint="one each, in the order of the config")
        for piece, part in zip(pieces, parts, strict=True):
            if any(piece is each for each in lacking):
                piece[name] = _parsed(part.strip(), field.annotation)
    return [HardwareUnit(kind.name, node_rank, _checked(kind, piece, path)) for piece in pieces]


def _checked(kind: HardwareType, settings: dict[str, Any], path: str) -> object:
    try:
        return kind.config_model.model_validate(settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        problem = f"{name.upper()} of node {settings['node_rank']} is {settings.get(name)!r}: {first['msg']}"
        raise ConfigError(problem, path=path) from error


def _fillable(kind: HardwareType) -> dict[str, FieldInfo]:
    return {name: kind.config_model.model_fields[name] for name in kind.fillable}


def _parsed(text: str, annotation: Any) -> Any:
    """The text as a setting of that type; what cannot be read stays text, and is refused as such."""
    kinds = [each for each in _members(annotation) if each is not type(None)]
    kind = kinds[0] if kinds else str
    if get_origin(kind) in (list, tuple):
        item = next(iter(get_args(kind)), str)
        return [_parsed(part.strip(), item) for part in text.split(",") if part.strip()]
    if kind is bool:
        return _WORDS.get(text.lower(), text)
    if kind is float:
        try:
            return float(text)
        except ValueError:
            return text
    return text


def _members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, without what is noted on them."""
    if hasattr(annotation, "__metadata__"):  # Annotated[...]
        return _members(annotation.__origin__)
    is_union = get_origin(annotation) is Union or type(annotation).__name__ == "UnionType"
    members = get_args(annotation) if is_union else (annotation,)
    return tuple(m.__origin__ if hasattr(m, "__metadata__") else m for m in members)
