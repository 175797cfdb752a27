"""The names that a checkout's sources import from a package: read from the sources, nothing of theirs is run."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

# What a checkout has beside its package, by the file that only a checkout has.
_CHECKOUT, _BESIDE = "pyproject.toml", ("examples", "evaluations", "toolkits", "tests")
_SHOWN_FILES = 3


class WantedName(NamedTuple):
    """A name that sources import.

    Attributes:
        name: the name in it; "" where the module itself is imported.
        files: which files do, relative to the checkout.
    """

    module: str
    name: str
    files: tuple[str, ...]

    @property
    def full_name(self) -> str:
        """The name with its module's."""
        return f"{self.module}.{self.name}" if self.name else self.module

    def __str__(self) -> str:
        more = len(self.files) - _SHOWN_FILES
        files = ", ".join(self.files[:_SHOWN_FILES])
        return f"{self.full_name}: {files}" + (f" and {more} more" if more > 0 else "")


def wanted_names(package: Path, wanted: str) -> list[WantedName]:
    """Return what the sources of a package, and of the checkout that it lies in, import from a module and below it.

    What stands under `if TYPE_CHECKING:` is left out, and so are the sources of that module itself.
    """
    root = package.parent
    beside = _BESIDE if (root / _CHECKOUT).exists() else ()
    own = root.joinpath(*wanted.split("."))
    # Most files have no such line, and are not parsed.
    line = re.compile(
        rb"^[ \t]*(?:from|import)[ \t][\w. \t]*\b" + wanted.rpartition(".")[2].encode(), re.MULTILINE
    )
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for folder in (package.name, *beside):
        for file in sorted((root / folder).rglob("*.py")):
            if not file.is_relative_to(own) and line.search(text := file.read_bytes()):
                place = str(file.relative_to(root))
                for each in dict.fromkeys(_imported(text, file.relative_to(root), wanted)):
                    found[each].append(place)
    return [WantedName(module, name, tuple(files)) for (module, name), files in sorted(found.items())]


def missing_names(package: Path, wanted: str) -> list[WantedName]:
    """Return those of them that the module, as this process imports it, does not have. Imports all that it has."""
    return [each for each in wanted_names(package, wanted) if _is_missing(each)]


def _imported(text: bytes, file: Path, wanted: str) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # for another Python, or none: who imports it is told
        return
    package = file.with_suffix("").parts[:-1]
    for node in _run_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if f"{alias.name}.".startswith(f"{wanted}."))
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            if f"{module}.".startswith(f"{wanted}."):
                yield from ((module, alias.name) for alias in node.names if alias.name != "*")


def _run_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield other
                yield from _run_nodes(other)
            continue
        yield node
        yield from _run_nodes(node)


def _is_missing(wanted: WantedName) -> bool:
    try:
        module = import_module(wanted.module)
    except ModuleNotFoundError as error:
        return f"{wanted.module}.".startswith(f"{error.name}.")
    except ImportError:  # it is there, and something that it needs is not
        return False
    try:
        if not wanted.name or hasattr(module, wanted.name):
            return False
    except ImportError:  # so is this
        return False
    return not hasattr(module, "__path__") or find_spec(wanted.full_name) is None
