"""Names of a package that are loaded when somebody asks for them: importing the package stays cheap."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from rlinf_scheduler.wording import did_you_mean


def loader(names: dict[str, Any], modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`.

    Args:
        names: the package's own, its `globals()`; what was loaded is kept there.
        modules: the full name of the module that has it, by the name that the package offers.
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise _no_name(names, name, [*modules, *_offered(names)])
        return _load(names, name, modules[name])

    return load


def mirror(names: dict[str, Any], package: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module that has the public names of another one, imported with the first of them.

    Args:
        names: the module's own, its `globals()`; what was asked for is kept there.
        package: the full name of the other module.
    """

    def load(name: str) -> Any:
        module = import_module(package)
        try:
            value = getattr(module, name)
        except AttributeError:
            if name in _public(module):
                raise  # it fails while it is loaded
            raise _no_name(names, name, _public(module)) from None
        if isinstance(value, ModuleType) and "__path__" in names and find_spec(f"{names['__name__']}.{name}"):
            return import_module(f"{names['__name__']}.{name}")  # the package has its own
        names[name] = value
        return value

    return load


def declared(names: dict[str, Any], package: str = "") -> Callable[[str], Any]:
    """Return the `__getattr__` of a package for what it imports under `if TYPE_CHECKING:`, where type checkers see it.

    So each name is written once. The package's source is read for it.

    Args:
        names: the package's own, its `globals()`; what was loaded is kept there.
        package: the full name of another one, which is asked for all other names, as by `mirror`.
    """
    with open(names["__file__"], "rb") as source:
        tree = ast.parse(source.read())
    blocks = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: str(node.module) for node in imports for alias in node.names}
    others = mirror(names, package) if package else loader(names, modules)

    def load(name: str) -> Any:
        if name in modules:
            return _load(names, name, modules[name])
        try:
            return others(name)
        except AttributeError:
            more = list(_public(import_module(package))) if package else []
            if name in more:
                raise  # it fails while it is loaded
            raise _no_name(names, name, [*modules, *more]) from None

    return load


def _load(names: dict[str, Any], name: str, module: str) -> Any:
    try:
        value = names[name] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        hint = names.get("IF_NOT_INSTALLED", "only planning does without it")
        message = f"{name} needs '{error.name}', which is not installed: {hint}"
        raise ModuleNotFoundError(message, name=error.name) from error
    return value


def _public(module: ModuleType) -> Iterable[str]:
    """Return the names that a module offers."""
    return getattr(module, "__all__", None) or _offered(vars(module))


def _offered(names: Mapping[str, Any]) -> Iterable[str]:
    """Return the public names among a module's globals, without those of other modules."""
    present = list(names.items())
    return [name for name, value in present if name[:1] != "_" and not isinstance(value, ModuleType)]


def _no_name(names: dict[str, Any], name: str, known: Iterable[str]) -> AttributeError | ImportError:
    """Return the error about a name that a module does not have, with the nearest one that it has."""
    module = names["__name__"]
    hint = "" if name.startswith("__") else did_you_mean(name, known)
    message = f"module '{module}' has no attribute '{name}'{hint and f'; {hint}'}"
    if hint and _is_import_from() and find_spec(f"{module}.{name}") is None:
        return ImportError(f"cannot import name '{name}' from '{module}'; {hint}", name=module)
    return AttributeError(message, name=name)


def _is_import_from() -> bool:
    """Return whether `from package import name` asks a `__getattr__`, and hides what an AttributeError says."""
    asker = sys._getframe(3)  # of `load`, in which `_no_name` is called
    return asker.f_code.co_name == "_handle_fromlist"
