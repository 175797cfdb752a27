"""Where a config comes from: a dict, a DictConfig or a YAML file, as plain data with the place of every value."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlinf_scheduler.config.yaml_file import FilePosition, read_yaml_file
from rlinf_scheduler.errors import ConfigError, UnknownKey
from rlinf_scheduler.planning.caret import Span, excerpt
from rlinf_scheduler.wording import nearest_name

SECTION = "cluster"
SECTION_KEYS = (
    "num_nodes",
    "nodes",
    "component_placement",
    "node_groups",
    "simulate",
    "network",
    "channel_process",
    "unreachable_after_s",
    "fail_fast",
    "profiling",
    "metrics",
    "tracer",
    "net_emulation",
    "auto_scheduler",
    "use_pre_process_policy",
    "use_wait_before_last_iter_policy",
    "recreate_nccl_groups",
)

_LAST_PART = re.compile(r"(\.[^.]*|\[\d+\]|[^.]+)$")


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """The `cluster:` section as plain dicts and lists, not checked yet.

    Attributes:
        section: its content; every key is text.
        file: the file that it was read from, or "".
        places: where every key stands, by path, where it comes from a file.
        numbers_as_written: whether a number is what stands in the file; other loaders read `1:0` as 60.
        order: every path of the section, numbered as they stand in it.
    """

    section: dict[str, Any]
    file: str = ""
    places: Mapping[str, FilePosition] = field(default_factory=dict)
    numbers_as_written: bool = False
    order: Mapping[str, int] = field(default_factory=dict)

    def locate(self, error: ConfigError) -> ConfigError:
        """The error with its file and line, where they are known, and the spot in that line."""
        if not self.file or error.file:
            return error
        known = next((path for path in _prefixes(error.path) if path in self.places), None)
        if known is None:
            return error.at(file=self.file)
        place = self.places[known]
        located = error.at(file=f"{self.file}:{place.line}")
        if error.text:
            return located
        about_key = isinstance(error, UnknownKey) or known != error.path or place.value is None
        return located.pointing(*_without_indent(place.row, place.key if about_key else place.value))

    def in_order(self, errors: Iterable[ConfigError]) -> list[ConfigError]:
        """The errors located, in the order of the section."""
        single = [each for error in errors for each in error.each()]
        return [self.locate(error) for error in sorted(single, key=self._position)]

    def _position(self, error: ConfigError) -> int:
        return next((self.order[path] for path in _prefixes(error.path) if path in self.order), -1)


def read_source(config: Any) -> ConfigSource:
    """The `cluster:` section of a config.

    Args:
        config: a whole config, or its `cluster` section: a dict, a DictConfig or the path of a YAML file.

    Raises:
        ConfigError: it cannot be read, or there is no such section.
    """
    try:
        if isinstance(config, (str, os.PathLike)):
            return _from_file(Path(config))
        return _source(_section_of(_plain_root(config)), "", {}, numbers_as_written=False)
    except RecursionError as error:
        raise ConfigError("the config is nested too deeply, or a value holds itself") from error


def _from_file(path: Path) -> ConfigSource:
    content = read_yaml_file(path)
    # A file may hold the section alone: paths are then the same as if it stood under its key.
    places = content.places
    if SECTION not in content.data:
        places = {f"{SECTION}.{key}": place for key, place in places.items()}
    try:
        section = _section_of(_resolved(_plain(content.data)))
    except ConfigError as error:
        raise ConfigSource({}, str(path), places).locate(error) from error
    return _source(section, str(path), places, numbers_as_written=True)


def _source(
    section: dict[str, Any], file: str, places: Mapping[str, FilePosition], *, numbers_as_written: bool
) -> ConfigSource:
    order = {path: index for index, path in enumerate(_paths(section, SECTION))}
    return ConfigSource(section, file, places, numbers_as_written, order)


def _plain_root(config: Any) -> dict[str, Any]:
    if _is_omegaconf(config, ["DictConfig"]):
        return _plain_dictconfig(config)
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"a config must be a dict, a DictConfig or the path of a YAML file, not {type(config).__name__}"
        )
    return _resolved(_plain(config))


def _section_of(root: dict[str, Any]) -> dict[str, Any]:
    if SECTION in root:
        section = root[SECTION]
        if not isinstance(section, dict):
            what = "empty" if section is None else f"a {type(section).__name__}"
            raise ConfigError(f"this section must be a mapping; here it is {what}", path=SECTION)
        return section
    if any(key in root for key in SECTION_KEYS):
        return root
    raise ConfigError("there is no `cluster:` section", hint=_misspelt(root))


def _misspelt(root: Iterable[str]) -> str:
    near = nearest_name(SECTION, root)
    return f"is '{near}' meant to be '{SECTION}'?" if near else ""


def _is_omegaconf(value: Any, kinds: Sequence[str] = ("DictConfig", "ListConfig")) -> bool:
    return type(value).__name__ in kinds and type(value).__module__.startswith("omegaconf")


def _plain_dictconfig(config: Any) -> dict[str, Any]:
    # Only the section is resolved: interpolations elsewhere may not be resolvable here.
    with _omegaconf_errors():
        if SECTION in config:
            return {SECTION: _plain(config[SECTION])}
        if not any(key in config for key in SECTION_KEYS):
            raise ConfigError("there is no `cluster:` section", hint=_misspelt([str(key) for key in config]))
        plain: dict[str, Any] = _plain(config)
        return plain


def _resolved(root: dict[str, Any]) -> dict[str, Any]:
    """The root with the interpolations of its section filled in, as Hydra would."""
    if not any("${" in text for text in _texts(root.get(SECTION, root))):
        return root
    # Loading it takes 0.1 s, and few files and dicts need it.
    from omegaconf import OmegaConf  # noqa: PLC0415

    with _omegaconf_errors():
        return _plain_dictconfig(OmegaConf.create(root, flags={"allow_objects": True}))


@contextmanager
def _omegaconf_errors() -> Iterator[None]:
    """Turn OmegaConf's errors into ours."""
    # A DictConfig has loaded it already; other configs do not need it.
    from omegaconf.errors import OmegaConfBaseException  # noqa: PLC0415

    try:
        yield
    except OmegaConfBaseException as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        path = str(getattr(error, "full_key", None) or "")
        raise ConfigError(f"a value cannot be resolved: {lines[0]}", path=path) from error


def _plain(value: Any) -> Any:
    """A copy made of dicts with text keys, lists, and the other values as they are."""
    if _is_omegaconf(value):
        # The value is of this library, so it is loaded already.
        from omegaconf import OmegaConf  # noqa: PLC0415

        with _omegaconf_errors():
            value = OmegaConf.to_container(value, resolve=True, throw_on_missing=True, enum_to_str=True)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_plain(item) for item in value]
    return value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _paths(value: Any, path: str) -> Iterator[str]:
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _paths(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _paths(item, f"{path}[{index}]")


def _prefixes(path: str) -> Iterator[str]:
    """The path, then without its last part, and so on: where a missing key would stand is its parent's place."""
    while path:
        yield path
        path = _LAST_PART.sub("", path)


def _without_indent(row: str, span: Span | None) -> tuple[str, Span]:
    indent = len(row) - len(row.lstrip())
    start, end = span or (indent, indent)
    return excerpt(row.strip(), (max(0, start - indent), max(0, end - indent)))
