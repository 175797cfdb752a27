"""Reading a YAML file: numbers as written, every value's place known, every mistake an error of ours.

YAML 1.1, which PyYAML and OmegaConf read, takes `1:0` for the number 60, `010` for 8 and `no` for false. A placement
must stay what is written, so this loader knows only the numbers and words of YAML 1.2's core schema. The numbers under
`env_vars` stay text: a program may care how `010`, `+5` or `2.10` was written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.planning.caret import Span, excerpt

_MAX_VALUES = 300_000
# Under this key a number is text.
_TEXTS = "env_vars"
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class FilePosition:
    """Where a key with its value, or an entry of a list, stands in a file.

    Attributes:
        line: the line that it begins on, from 1.
        row: the text of that line.
        key: the key, or the entry's beginning, in the row.
        value: the value in the row; None where it does not stand there, or goes on below.
    """

    line: int
    row: str = ""
    key: Span = (0, 0)
    value: Span | None = None


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A file's content.

    Attributes:
        data: its mapping, as plain dicts, lists, texts and numbers.
        places: where every key and list entry stands, by path, e.g. "cluster.node_groups[0].label".
    """

    data: dict[Any, Any]
    places: dict[str, FilePosition] = field(default_factory=dict)


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
        raise ConfigError(f"the file is not UTF-8 text: {error.reason}", file=str(path)) from error
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
        recorder = _PlaceRecorder(text, file)
        recorder.record(node, "")
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
        raise ConfigError(f"the file is {what}, not {wanted}", file=file)
    return YamlFile(data, recorder.places)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2's core schema."""

    # PyYAML keeps a loader's rules in these two.
    yaml_implicit_resolvers = {}  # noqa: RUF012
    yaml_constructors = {  # noqa: RUF012
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in {"null", "bool", "int", "float", "str", "seq", "map"}
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node."""
        if isinstance(node, yaml.MappingNode):
            self.flatten_mapping(node)  # first: variables may come from what is merged
            node.value = [
                (key, self._as_written(value) if key.value == _TEXTS else value) for key, value in node.value
            ]
        content: dict[Any, Any] = super().construct_mapping(node, deep)
        return content

    def _as_written(self, node: yaml.Node) -> yaml.Node:
        """A copy of a node, for aliases may stand elsewhere too, with its numbers as text."""
        marks = node.start_mark, node.end_mark
        if isinstance(node, yaml.MappingNode):
            self.flatten_mapping(node)
            pairs = [(key, self._as_written(value)) for key, value in node.value]
            return yaml.MappingNode(node.tag, pairs, *marks)
        if isinstance(node, yaml.SequenceNode):
            return yaml.SequenceNode(node.tag, list(map(self._as_written, node.value)), *marks)
        is_number = node.tag in (f"{_TAG}int", f"{_TAG}float")
        return yaml.ScalarNode(f"{_TAG}str", node.value, *marks) if is_number else node


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("merge", r"<<", "<"),
):
    _regexp = re.compile(f"^(?:{_pattern})$")
    _Loader.add_implicit_resolver(f"{_TAG}{_tag}", _regexp, [*_first.replace("\0", ""), ""])


class _PlaceRecorder:
    """Walks over a document's nodes and notes where each stands."""

    def __init__(self, text: str, file: str) -> None:
        self.places: dict[str, FilePosition] = {}
        self._rows = _rows(text)
        self._file = file
        self._ancestors: list[yaml.Node] = []

    def record(self, node: yaml.Node | None, path: str) -> None:
        if node is None or isinstance(node, yaml.ScalarNode):
            return
        self._refuse_endless(node)
        self._ancestors.append(node)
        if isinstance(node, yaml.MappingNode):
            self._record_mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self._note(f"{path}[{index}]", value, value)
                self.record(value, f"{path}[{index}]")
        self._ancestors.pop()

    def _record_mapping(self, node: yaml.MappingNode, path: str) -> None:
        keys: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            child = f"{path}.{name}" if path else name
            if name in keys and name != "<<":
                self._refuse_twice(name, key, path)
            keys.add(name)
            self._note(child, key, value)
            self.record(value, child)

    def _note(self, path: str, key: yaml.Node, value: yaml.Node) -> None:
        line = key.start_mark.line
        row = self._rows[line] if line < len(self._rows) else ""
        value_span = _span_on(line, value, row) if _ends_on(line, value) else None
        self.places[path] = FilePosition(line + 1, row, _span_on(line, key, row), value_span)

    def _refuse_endless(self, node: yaml.Node) -> None:
        if any(node is ancestor for ancestor in self._ancestors):
            place = f"{self._file}:{node.start_mark.line + 1}"
            raise ConfigError("a value holds itself: an alias stands inside its own anchor", file=place)
        if len(self.places) > _MAX_VALUES:
            problem = f"more than {_MAX_VALUES} values: aliases of aliases multiply them"
            raise ConfigError(problem, file=self._file)

    def _refuse_twice(self, name: str, key: yaml.Node, path: str) -> None:
        line = key.start_mark.line
        row = self._rows[line] if line < len(self._rows) else ""
        text, span = excerpt(row, _span_on(line, key, row))
        problem = f"the key '{name}' stands here twice"
        raise ConfigError(problem, path=path, text=text, span=span, file=f"{self._file}:{line + 1}")


def _rows(text: str) -> list[str]:
    # The line breaks of YAML, which are fewer than those of str.splitlines.
    return re.split(r"\r\n|[\n\r\x85\u2028\u2029]", text)


def _ends_on(line: int, node: yaml.Node) -> bool:
    return (
        node.start_mark.line == line == node.end_mark.line and node.end_mark.column > node.start_mark.column
    )


def _span_on(line: int, node: yaml.Node, row: str) -> Span:
    start = node.start_mark.column
    return start, node.end_mark.column if node.end_mark.line == line else max(start, len(row.rstrip()))


def _syntax_error(error: yaml.YAMLError, text: str, file: str) -> ConfigError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if mark is None:
        return ConfigError(f"this is not YAML: {problem}", file=file)
    rows = _rows(text)
    row = rows[mark.line] if mark.line < len(rows) else ""
    hint = _syntax_hint(error, mark, row)
    shown, span = excerpt(row, (min(mark.column, len(row)), mark.column + 1))
    place = f"{file}:{mark.line + 1}"
    return ConfigError(f"this is not YAML: {problem}", text=shown, span=span, hint=hint, file=place)


def _syntax_hint(error: yaml.YAMLError, mark: yaml.Mark, row: str) -> str:
    if "\t" in row[: mark.column + 1]:
        return "indent with spaces: YAML allows no tabs there"
    start = getattr(error, "context_mark", None)
    if start is not None and start.line != mark.line:
        return f"{getattr(error, 'context', 'what is read')}, which begins in line {start.line + 1}"
    return ""


# -- writing -----------------------------------------------------------------------------------------


_PLAIN = re.compile(r"[A-Za-z/][\w./-]*", re.ASCII)
# Some of them are numbers, some booleans, to one version of YAML or another.
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def quoted(text: str) -> str:
    r"""The text as it is where it can only be text, else in double quotes.

    >>> quoted("NVIDIA"), quoted("4"), quoted("no"), quoted('a "b"\n')
    ('NVIDIA', '"4"', '"no"', '"a \\"b\\"\\x0a"')
    """
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
