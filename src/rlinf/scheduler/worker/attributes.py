"""Which attributes workers of a class have, as its source says: a misspelt name is found before anything is sent."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeAlias

_LIBRARY = "rlinf.scheduler."

Method: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@lru_cache(maxsize=256)
def declared_attributes(worker_class: type) -> frozenset[str] | None:
    """The names of all attributes that a worker may have; None where only the worker knows.

    That is so if its source cannot be read, or if a method does anything else with `self` than to name its attributes:
    then others may set some.
    """
    names = set(dir(worker_class))
    for each in worker_class.__mro__:
        if each is object or each.__module__.startswith(_LIBRARY):
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
    names = set(inspect.get_annotations(each))
    for method in _methods(tree.body[0]):
        of_method = None if method is None else _set_in(method)
        if of_method is None:
            return None
        names |= of_method
    return names


def _methods(definition: ast.stmt) -> Iterator[Method | None]:
    """The methods that a class's instances have; None for what may hold some."""
    for each in getattr(definition, "body", [None]):
        if isinstance(each, Method):
            kinds = [decorator.id for decorator in each.decorator_list if isinstance(decorator, ast.Name)]
            if "staticmethod" not in kinds and "classmethod" not in kinds:
                yield each
        elif not isinstance(each, ast.Assign | ast.AnnAssign | ast.Expr | ast.Pass | ast.ClassDef):
            yield None


def _set_in(method: Method) -> set[str] | None:
    """The attributes of its first argument that a method names; None if it does anything else with it."""
    positional = [*method.args.posonlyargs, *method.args.args]
    own = positional[0].arg if positional else ""
    attributes = [
        node
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == own
    ]
    used = sum(isinstance(node, ast.Name) and node.id == own for node in ast.walk(method))
    if used > len(attributes) or any(node.attr == "__dict__" for node in attributes):
        return None
    return {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
