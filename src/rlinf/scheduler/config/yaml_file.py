"""Reading a YAML file: numbers as written, every value's line known, every mistake an error of ours.

YAML 1.1, which PyYAML and OmegaConf read, takes `1:0` for the number 60, `010` for 8 and `no` for false. A placement
must stay what is written, so this loader knows only the numbers and words of YAML 1.2's core schema.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rlinf.scheduler.errors import ConfigError

_MAX_VALUES = 300_000


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A file's content.

    Attributes:
        data: its mapping, as plain dicts, lists, texts and numbers.
        lines: the line of every key and list entry by path, e.g. "cluster.node_groups[0].label", from 1.
    """

    data: dict[Any, Any]
    lines: dict[str, int] = field(default_factory=dict)


_A_CONFIG = "a mapping with a `cluster:` section"


def read_yaml_file(path: Path, *, wanted: str = _A_CONFIG) -> YamlFile:
    """The content of a YAML file.

    Args:
        path: the file.
        wanted: what it should hold, for an error.

    Raises:
        ConfigError: the file cannot be read, is no YAML, or is no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"it is not UTF-8 text: {error.reason}", file=str(path)) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(f"the file cannot be read: {reason}", file=str(path)) from error
    return parse_yaml(text, str(path), wanted=wanted)


def parse_yaml(text: str, file: str, *, wanted: str = _A_CONFIG) -> YamlFile:
    """The content of a YAML text; `file` names it in errors, `wanted` says what it should hold.

    Raises:
        ConfigError: it is no YAML, or no mapping.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines: dict[str, int] = {}
        _record_lines(node, "", lines, [], file)
        data = loader.construct_document(node) if node is not None else None
    except ConfigError:
        raise
    except yaml.YAMLError as error:
        raise _syntax_error(error, text, file) from error
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        # A number with thousands of digits; `!!bool perhaps`; lists nested thousands deep.
        raise ConfigError(f"a value cannot be read: {error}", file=file) from error
    if not isinstance(data, dict):
        what = "empty" if data is None else f"a {type(data).__name__}"
        raise ConfigError(f"it is {what}, not {wanted}", file=file)
    return YamlFile(data, lines)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2's core schema."""

    # PyYAML keeps a loader's rules in these two.
    yaml_implicit_resolvers = {}  # noqa: RUF012
    yaml_constructors = {  # noqa: RUF012
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in {"null", "bool", "int", "float", "str", "seq", "map"}
    }


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("merge", r"<<", "<"),
):
    _regexp = re.compile(f"^(?:{_pattern})$")
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _regexp, [*_first.replace("\0", ""), ""])


def _record_lines(
    node: yaml.Node | None, path: str, lines: dict[str, int], ancestors: list[yaml.Node], file: str
) -> None:
    if node is None or isinstance(node, yaml.ScalarNode):
        return
    if any(node is ancestor for ancestor in ancestors):
        line = node.start_mark.line + 1
        raise ConfigError(
            "a value holds itself: an alias stands inside its own anchor", file=f"{file}:{line}"
        )
    if len(lines) > _MAX_VALUES:
        raise ConfigError(f"more than {_MAX_VALUES} values: aliases of aliases multiply them", file=file)
    ancestors.append(node)
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in keys and name != "<<":
                raise ConfigError(f"the key '{name}' stands here twice", path=path, file=f"{file}:{line}")
            keys.add(name)
            child = f"{path}.{name}" if path else name
            lines[child] = line
            _record_lines(value, child, lines, ancestors, file)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[f"{path}[{index}]"] = value.start_mark.line + 1
            _record_lines(value, f"{path}[{index}]", lines, ancestors, file)
    ancestors.pop()


def _syntax_error(error: yaml.YAMLError, text: str, file: str) -> ConfigError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if mark is None:
        return ConfigError(f"this is not YAML: {problem}", file=file)
    rows = text.splitlines()
    row = rows[mark.line] if mark.line < len(rows) else ""
    hint = "indent with spaces: YAML allows no tabs there" if "\t" in row[: mark.column + 1] else ""
    shown = row.replace("\t", " ")[:200]
    span = (mark.column, mark.column + 1) if mark.column <= len(shown) else None
    return ConfigError(
        f"this is not YAML: {problem}", text=shown, span=span, hint=hint, file=f"{file}:{mark.line + 1}"
    )
