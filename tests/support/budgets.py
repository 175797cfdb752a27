"""How large the library may be: figures that are read off its sources, beside the limits of budgets.toml.

As a program it prints each figure with its limit, and ends with 1 where one is above: python budgets.py [--walks]
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NEAR = 0.95  # a figure below that part of its limit leaves room that nobody has asked for
MANY_OPTIONS = 7
# Classes whose methods users call, with the classes that they derive from; and the functions that are commands.
FACES = {"Channel", "Cluster", "GroupBuilder", "PackedPlacementStrategy", "Worker"}
COMMANDS = "src/rlinf_scheduler/cli/"
FACE = "src/rlinf/scheduler/"
WEIGHTS = "src/rlinf_scheduler/weights/"
ENGINES = "src/rlinf_scheduler/engines/"
SIMULATOR = "simulator/"
QUEUES = ("src/rlinf_scheduler/channel/", "src/rlinf_scheduler/queueing/")
FEATURES = {
    "admission": r"admissions?|admit(s|ted|ting)?",
    "leases": r"leas(e[ds]?|ing)",
    "taps": r"tap(s|ped|ping)?",
    "shards": r"shard(s|ed|ing)?",
}


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit, and what it is to become."""

    limit: int
    aim: int

    def verdict(self, figure: int) -> str:
        """Say whether a figure is above the limit, or so far below that the limit can be lowered; "" if neither."""
        if figure > self.limit:
            return f"is above its limit by {figure - self.limit}"
        return "is so small that its limit can be lowered" if figure < NEAR * self.limit else ""


def budgets() -> dict[str, Budget]:
    """Return all budgets by name."""
    written = tomllib.loads((HERE / "budgets.toml").read_text(encoding="utf-8"))
    return {name: Budget(**figures) for name, figures in written.items()}


def figures_of_sources(root: Path = ROOT) -> dict[str, int]:
    """Return the figures for which nothing has to run, by the names of their budgets."""
    files = {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for folder in ("src", SIMULATOR)
        for path in sorted((root / folder).rglob("*.py"))
    }
    glossary = (root / "docs/glossary.md").read_text(encoding="utf-8")
    everything, simulator = _lines(files.values()), _lines(_within(files, SIMULATOR))
    weights, engines = _lines(_within(files, WEIGHTS)), _lines(_within(files, ENGINES))
    return {
        "lines of src and the simulator": everything,
        "lines of src": everything - simulator - weights - engines,
        "lines of weights": weights,
        "lines of engines": engines,
        "lines of the face": _lines(_within(files, FACE)),
        "words of the glossary": len(re.findall(r"^\| \*\*", glossary, re.MULTILINE)),
        "functions with seven options": len(functions_with_many_options(files)),
        **{
            f"files of queues that mention {feature}": sum(
                mentions(text, words) for text in _within(files, *QUEUES)
            )
            for feature, words in FEATURES.items()
        },
    }


def figures_of_walks(*address: str) -> dict[str, int]:
    """Return the figures of walks (see walks.py), on the Ray at that address or on a cluster of their own."""
    command = [sys.executable, str(HERE / "walks.py"), *address]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=240)
    return figures_of_files(json.loads(ran.stdout.splitlines()[-1]))


def figures_of_files(entered: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Return the files of each walk, and their lines, counted."""
    figures = {}
    for walk, paths in entered.items():
        texts = [Path(path).read_text(encoding="utf-8") for path in paths]
        figures |= {f"files that {walk} enters": len(texts), f"lines that {walk} enters": _lines(texts)}
    return figures


def mentions(text: str, words: str) -> bool:
    """Say whether one of the words of some source, parts of its names included, matches a pattern."""
    return any(re.fullmatch(words, word.lower()) for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", text))


def functions_with_many_options(files: Mapping[str, str]) -> list[str]:
    """Return the functions with seven arguments or more, `self` not counted, but for those that users call."""
    found, bases = [], {}
    for path, text in files.items():
        tree = ast.parse(text)
        bases |= {
            node.name: {ast.unparse(base).partition("[")[0] for base in node.bases}
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
        }
        if not path.startswith((COMMANDS, FACE)):
            found += [(path, owner, function) for owner, function in _functions(tree)]
    faces = _with_bases(FACES, bases)
    return [
        f"{path}:{function.lineno} {owner}.{function.name}".replace(" .", " ")
        for path, owner, function in found
        if _takes(function) >= MANY_OPTIONS and not (owner in faces and _is_public(function.name))
    ]


def _functions(
    node: ast.AST, owner: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """All functions of a tree, with the classes that they stand in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield owner, child
        yield from _functions(child, child.name if isinstance(child, ast.ClassDef) else owner)


def _takes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def _is_public(name: str) -> bool:
    return name == "__init__" or not name.startswith("_")


def _with_bases(classes: set[str], bases: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    while classes - found:
        name = (classes - found).pop()
        found.add(name)
        classes = classes | bases.get(name, set())
    return found


def _within(files: Mapping[str, str], *folders: str) -> list[str]:
    return [text for path, text in files.items() if path.startswith(folders)]


def _lines(texts: Iterable[str]) -> int:
    return sum(text.count("\n") for text in texts)


def report(figures: Mapping[str, int], limits: Mapping[str, Budget]) -> tuple[list[str], bool]:
    """Return a line for each figure, and whether all of them keep to their limits."""
    told, kept = [], True
    for name, budget in limits.items():
        if name in figures:
            figure, note = figures[name], budget.verdict(figures[name])
            told.append(
                f"{figure:>7} of {budget.limit:>6}, later {budget.aim:>5}: {name}{note and ', which ' + note}"
            )
            kept = kept and figure <= budget.limit
    return told, kept


def main(*options: str) -> int:
    """Print the figures; the status of the program."""
    figures = figures_of_sources() | (figures_of_walks() if "--walks" in options else {})
    told, kept = report(figures, budgets())
    sys.stdout.writelines(f"{line}\n" for line in told)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
