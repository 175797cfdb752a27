"""Which attributes workers of a class have, as its source says: a misspelt name is found before anything is sent."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeAlias

# Where a class is defined that belongs to this library.
LIBRARY = "rlinf_scheduler.", "rlinf.scheduler."
_KNOWN_DECORATORS = frozenset(
    [
        "abstractmethod",
        "cached_property",
        "classmethod",
        "dataclass",
        "final",
        "inference_mode",
        "no_grad",
        "overload",
        "override",
        "property",
        "setter",
        "staticmethod",
        "timer",
    ]
)
# Of what a class assigns in its body: none of them is a function.
_PLAIN_VALUES = ast.Constant | ast.List | ast.Tuple | ast.Dict | ast.Set | ast.UnaryOp | ast.BinOp | None
# Functions that may set an attribute whose name is a text.
_SET_BY_TEXT = frozenset(["eval", "exec", "locals", "setattr", "vars"])

Method: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@lru_cache(maxsize=256)
def declared_attributes(worker_class: type) -> frozenset[str] | None:
    """The names of all attributes that a worker may have; None where only the worker knows.

    That is so if its source cannot be read, or if others may set some: a method does anything else with `self` than to
    name its attributes, or a function from elsewhere is a method, or around one.
    """
    names = set(dir(worker_class))
    for each in worker_class.__mro__:
        if each is object or each.__module__.startswith(LIBRARY):
            continue
        of_class = _attributes_of(each)
        if of_class is None:
            return None
        names |= of_class
    return frozenset(names)


def _attributes_of(each: type) -> set[str] | None:
    """What the body of one class says."""
    if "__getattr__" in vars(each) or "__getattribute__" in vars(each):
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(each)))
    except (OSError, TypeError, SyntaxError):
        return None
    definition = tree.body[0]
    if not isinstance(definition, ast.ClassDef) or not _are_known(definition.decorator_list):
        return None
    if not all(method is not None and _only_names(method) for method in _methods(definition)):
        return None
    nodes = list(ast.walk(definition))
    if any(isinstance(node, ast.Name) and node.id in _SET_BY_TEXT for node in nodes):
        return None
    # Whatever they are set on: a method may also set them by the name of its class.
    stored = {
        node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    return stored | set(inspect.get_annotations(each))


def _methods(definition: ast.ClassDef) -> Iterator[Method | None]:
    """The methods that a class's instances have; None for what may be, or hold, one that is not seen here."""
    for each in definition.body:
        if isinstance(each, Method):
            if not _are_known(each.decorator_list):
                yield None
            elif not {"staticmethod", "classmethod"} & set(map(_name_of, each.decorator_list)):
                yield each
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            if not isinstance(each.value, _PLAIN_VALUES):
                yield None
        elif not isinstance(each, ast.Expr | ast.Pass | ast.ClassDef):
            yield None


def _are_known(decorators: list[ast.expr]) -> bool:
    """Whether what is around a class or a method sets no attributes but such as the class says."""
    return all(_name_of(each) in _KNOWN_DECORATORS for each in decorators)


def _name_of(decorator: ast.expr) -> str:
    """Its last name: "timer" for `@Worker.timer("generate")`."""
    bare = decorator.func if isinstance(decorator, ast.Call) else decorator
    return bare.attr if isinstance(bare, ast.Attribute) else bare.id if isinstance(bare, ast.Name) else ""


def _only_names(method: Method) -> bool:
    """Whether a method does nothing with its first argument but to name attributes of it, and no special ones."""
    positional = [*method.args.posonlyargs, *method.args.args]
    own = positional[0].arg if positional else ""
    attributes = [
        node
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == own
    ]
    used = sum(isinstance(node, ast.Name) and node.id == own for node in ast.walk(method))
    return used == len(attributes) and not any(_is_special(node.attr) for node in attributes)


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
