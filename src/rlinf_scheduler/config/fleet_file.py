"""A fleet as a YAML file, and back: the format that `rlinf topology --out` writes and `rlinf plan --fleet` reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from rlinf_scheduler.checks import is_text_or_number
from rlinf_scheduler.config.findings import check, misspelt_keys, shown, unknown_key
from rlinf_scheduler.config.fleet import FLEET_VERSION, Fleet, FleetAccelerator, FleetInterface, FleetNode
from rlinf_scheduler.config.schema import Section, read_settings
from rlinf_scheduler.config.source import ConfigSource
from rlinf_scheduler.config.yaml_file import quoted, read_yaml_file
from rlinf_scheduler.errors import ConfigError, raise_config_errors
from rlinf_scheduler.planning.topology import MAX_ACCELERATORS, MAX_NODES

_KEYS = ["version", "nodes"]
_HEADER = """\
# The nodes of a cluster, in rank order. `rlinf plan CONFIG --fleet THIS_FILE` plans on them, anywhere.
"""


def read_fleet(path: str | os.PathLike[str]) -> Fleet:
    """The fleet that a file holds; `.topology` of it is what a plan is made on.

    Raises:
        ConfigError: a mistake in the file; its text says where, and names the nearest key for one that is unknown.
        ConfigErrors: several mistakes.
    """
    file = str(path)
    content = read_yaml_file(Path(path), wanted="a mapping with the keys `version` and `nodes`")
    order = {place: index for index, place in enumerate(content.places)}
    source = ConfigSource(content.data, file, content.places, order=order)
    errors: list[ConfigError] = []
    nodes = tuple(_nodes(content.data, errors))
    if not errors:
        try:
            return Fleet(nodes)
        except ConfigError as error:
            errors.extend(getattr(error, "errors", [error]))
    raise_config_errors(source.in_order(errors))
    return Fleet(nodes)


def format_fleet(fleet: Fleet) -> str:
    """The text of a fleet's file; `read_fleet` of it gives an equal fleet.

    >>> accelerators = (FleetAccelerator("NVIDIA", "4", memory_bytes=2**36), FleetAccelerator("NVIDIA", "5"))
    >>> print(format_fleet(Fleet((FleetNode(ip="10.0.0.7", accelerators=accelerators),))))
    # The nodes of a cluster, in rank order. `rlinf plan CONFIG --fleet THIS_FILE` plans on them, anywhere.
    version: 1
    nodes:
      - ip: "10.0.0.7"
        accelerators:
          - {type: NVIDIA, visible: "4", memory_bytes: 68719476736}
          - {type: NVIDIA, visible: "5"}
    <BLANKLINE>
    """
    return f"{_HEADER}version: {FLEET_VERSION}\nnodes:\n" + "".join(map(_node_text, fleet.nodes))


def _read_text(value: Any) -> str:
    if not is_text_or_number(value):
        raise ConfigError(f"this must be text, not {shown(value)}")
    return str(value)


def _read_type(value: Any) -> str:
    text = _read_text(value).strip()
    if not text:
        raise ConfigError("the type is empty; it is the vendor, such as NVIDIA")
    return text


# A number is taken as the text it is written as: `visible: 4`.
_Text = Annotated[str, PlainValidator(_read_text)]
_Type = Annotated[str, PlainValidator(_read_type)]
_Size = Annotated[int, Field(ge=0)]
_Count = Annotated[int, Field(ge=1, le=MAX_NODES)]


class _AlikeSection(Section):
    """`accelerators:` in short: so many of a type."""

    type: _Type
    count: _Count
    model: _Text = ""
    memory_bytes: _Size | None = None
    island: _Size | None = None


class _AcceleratorSection(Section):
    """An entry of `accelerators:`."""

    type: _Type
    visible: _Text = ""
    model: _Text = ""
    uuid: _Text = ""
    memory_bytes: _Size | None = None
    numa_node: _Size | None = None
    island: _Size | None = None


class _InterfaceSection(Section):
    """An entry of `interfaces:`."""

    name: _Text
    address: _Text


class _NodeSection(Section):
    """An entry of `nodes:`. `count` stands for so many alike."""

    node_id: _Text = ""
    ip: _Text = ""
    hostname: _Text = ""
    python: _Text = ""
    labels: Annotated[tuple[tuple[str, str], ...], PlainValidator(read_settings)] = ()
    count: _Count = 1
    # Entries of both are checked one by one, so that mistakes in several are reported together.
    accelerators: Any = None
    interfaces: Any = None


def _nodes(data: Mapping[str, Any], errors: list[ConfigError]) -> Iterator[FleetNode]:
    unknown = [str(key) for key in data if key not in _KEYS]
    meant = misspelt_keys(unknown, [key for key in _KEYS if key not in data], _KEYS)
    errors.extend(unknown_key(key, _KEYS, key, meant.get(key, "")) for key in unknown)
    if "nodes" not in data:
        if "nodes" not in meant.values():
            problem = "the key 'nodes' is missing; a fleet's file lists the nodes of a cluster there"
            hint = "`rlinf topology --out fleet.yaml` writes the file of a running cluster"
            errors.append(ConfigError(problem, hint=hint))
        return
    reads = f"this reads version {FLEET_VERSION}"
    if "version" not in (*data, *meant.values()):
        errors.append(ConfigError(f"the key 'version' is missing; {reads}"))
    elif data.get("version", FLEET_VERSION) != FLEET_VERSION:
        errors.append(ConfigError(f"'version' is {shown(data['version'])}; {reads}", path="version"))
    num_nodes = num_accelerators = 0
    for path, entry in _entries(data["nodes"], "nodes", errors):
        section, found = check(_NodeSection, entry, path)
        errors.extend(found)
        if section is not None and (node := _node(section, path, errors)) is not None:
            num_nodes += section.count
            num_accelerators += section.count * len(node.accelerators)
            if num_nodes > MAX_NODES or num_accelerators > MAX_ACCELERATORS:
                most = f"{MAX_NODES} nodes and {MAX_ACCELERATORS} accelerators"
                errors.append(ConfigError(f"there can be at most {most}", path=path))
                return
            yield from repeat(node, section.count)


def _node(section: _NodeSection, path: str, errors: list[ConfigError]) -> FleetNode | None:
    said = [key for key in ("node_id", "ip", "hostname") if getattr(section, key)]
    if section.count > 1 and said:
        problem = f"{section.count} nodes that are alike cannot have one '{said[0]}'; write them one by one"
        errors.append(ConfigError(problem, path=f"{path}.count"))
        return None
    return FleetNode(
        section.node_id,
        section.ip,
        section.hostname,
        tuple(_accelerators(section.accelerators, f"{path}.accelerators", errors)),
        section.python,
        tuple(_interfaces(section.interfaces, f"{path}.interfaces", errors)),
        tuple(sorted(section.labels)),
        path,
    )


def _accelerators(value: Any, path: str, errors: list[ConfigError]) -> Iterator[FleetAccelerator]:
    if isinstance(value, Mapping):
        alike, found = check(_AlikeSection, value, path)
        errors.extend(found)
        if alike is not None:
            one = FleetAccelerator(
                alike.type, model=alike.model, memory_bytes=alike.memory_bytes, island=alike.island
            )
            yield from (one for _ in range(alike.count))
        return
    for place, entry in _entries(value, path, errors):
        section, found = check(_AcceleratorSection, entry, place)
        errors.extend(found)
        if section is not None:
            yield FleetAccelerator(**dict(section))


def _interfaces(value: Any, path: str, errors: list[ConfigError]) -> Iterator[FleetInterface]:
    for place, entry in _entries(value, path, errors):
        section, found = check(_InterfaceSection, entry, place)
        errors.extend(found)
        if section is not None:
            yield FleetInterface(section.name, section.address)


def _entries(value: Any, path: str, errors: list[ConfigError]) -> Iterator[tuple[str, Any]]:
    if value is not None and not isinstance(value, list):
        errors.append(ConfigError(f"this must be a list, not {shown(value)}", path=path))
        return
    for index, entry in enumerate(value or ()):
        yield f"{path}[{index}]", entry


def _node_text(node: FleetNode) -> str:
    lines = [
        f"{key}: {quoted(getattr(node, key))}"
        for key in ("node_id", "ip", "hostname", "python")
        if getattr(node, key)
    ]
    if node.labels:
        pairs = (f"{_scalar(name)}: {_scalar(value)}" for name, value in node.labels)
        lines.append("labels: {" + ", ".join(pairs) + "}")
    for key in ("interfaces", "accelerators"):
        entries = getattr(node, key)
        lines.append(f"{key}:" + ("" if entries else " []"))
        lines.extend(f"  - {_inline(entry)}" for entry in entries)
    if not node.interfaces:
        lines.remove("interfaces: []")
    return "".join(f"  {'-' if index == 0 else ' '} {line}\n" for index, line in enumerate(lines))


def _inline(entry: FleetAccelerator | FleetInterface) -> str:
    values = {field.name: getattr(entry, field.name) for field in fields(entry)}
    said = {key: value for key, value in values.items() if value not in ("", None)}
    return "{" + ", ".join(f"{key}: {_scalar(value)}" for key, value in said.items()) + "}"


def _scalar(value: str | int) -> str:
    return quoted(value) if isinstance(value, str) else str(value)
