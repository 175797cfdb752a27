"""Every import statement of a source tree as a graph: also those inside functions, in strings and for types only."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Import:
    """One module imports another; `types_only` where it stands under `if TYPE_CHECKING:`."""

    importer: str
    imported: str
    line: int
    types_only: bool = False

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def module_files(root: Path, *packages: Path) -> dict[str, Path]:
    """The modules under a folder that holds top-level packages, and those of packages elsewhere, by name."""
    files = {}
    for base, folder in [(root, root), *((package.parent, package) for package in packages)]:
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imports_of(root: Path, *packages: Path) -> list[Import]:
    """What the modules under a folder, and those of packages elsewhere, import of each other.

    Whoever imports a module imports the packages that it lies in too, save those that it lies in itself. A string that
    is the name of a module counts as an import of it: `import_module` and tables of lazy names take such strings. So
    does the end of one, where `import_module` is given an f-string that begins with the rest.
    """
    files = module_files(root, *packages)
    found: dict[tuple[str, str, bool], Import] = {}
    for name, path in files.items():
        is_package = path.name == "__init__.py"
        reader = _Reader(name, is_package, files)
        reader.visit(ast.parse(path.read_text(encoding="utf-8")))
        for each in reader.found():
            found.setdefault((each.importer, each.imported, each.types_only), each)
    return list(found.values())


class _Reader(ast.NodeVisitor):
    def __init__(self, name: str, is_package: bool, known: dict[str, Path]) -> None:
        self._name = name
        self._package = name if is_package else name.rpartition(".")[0]
        self._known = known
        self._types_only = False
        self._targets: list[tuple[str, int, bool]] = []
        self._strings: list[tuple[str, int]] = []
        self._beginnings: list[str] = [""]

    def found(self) -> Iterator[Import]:
        strings = [(begin + text, line, False) for text, line in self._strings for begin in self._beginnings]
        for target, line, types_only in (*self._targets, *strings):
            for module in self._with_packages(target):
                yield Import(self._name, module, line, types_only)

    def _with_packages(self, target: str) -> Iterator[str]:
        if target in self._known and target != self._name:
            parts = target.split(".")
            for length in range(1, len(parts) + 1):
                module = ".".join(parts[:length])
                if module == target or not f"{self._name}.".startswith(f"{module}."):
                    yield module

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self.generic_visit(node)
            return
        self._types_only = True
        for child in node.body:
            self.visit(child)
        self._types_only = False
        for child in node.orelse:
            self.visit(child)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._targets.append((alias.name, node.lineno, self._types_only))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parents = self._package.split(".")
            base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [node.module])])
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            self._targets.append((inner if inner in self._known else base, node.lineno, self._types_only))

    def visit_Call(self, node: ast.Call) -> None:
        if ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__") and node.args:
            written = node.args[0]
            if isinstance(written, ast.JoinedStr) and isinstance(written.values[0], ast.Constant):
                self._beginnings.append(str(written.values[0].value))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._strings.append((node.value, node.lineno))


def circles(imports: list[Import]) -> list[list[str]]:
    """The sets of modules that import each other, directly or by others (Tarjan, "Depth-First Search", 1972)."""
    following: dict[str, list[str]] = defaultdict(list)
    for each in imports:
        following[each.importer].append(each.imported)
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def walk(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        stack.append(module)
        for other in following.get(module, ()):
            if other not in numbers:
                walk(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], numbers[other])
        if lowest[module] == numbers[module]:
            start = stack.index(module)
            if len(stack) - start > 1:
                found.append(sorted(stack[start:]))
            del stack[start:]

    for module in list(following):
        if module not in numbers:
            walk(module)
    return found
