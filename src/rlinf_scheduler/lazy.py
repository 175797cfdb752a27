"""Names of a package that are loaded when somebody asks for them: importing the package stays cheap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def loader(names: dict[str, Any], modules: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`.

    Args:
        names: the package's own, its `globals()`; what was loaded is kept there.
        modules: the full name of the module that has it, by the name that the package offers.
    """

    def load(name: str) -> Any:
        if name not in modules:
            message = f"module '{names['__name__']}' has no attribute '{name}'"
            raise AttributeError(message)
        try:
            value = names[name] = getattr(import_module(modules[name]), name)
        except ModuleNotFoundError as error:
            message = f"{name} needs '{error.name}', which is not installed: only planning does without it"
            raise ModuleNotFoundError(message, name=error.name) from error
        return value

    return load


def mirror(names: dict[str, Any], package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module that has the public names of another one, which is imported with the first of them.

    Args:
        names: the module's own, its `globals()`; what was asked for is kept there.
        package: the full name of the other module.
    """

    def load(name: str) -> Any:
        try:
            value = names[name] = getattr(import_module(package), name)
        except AttributeError:
            message = f"module '{names['__name__']}' has no attribute '{name}'"
            raise AttributeError(message, name=name) from None
        return value

    return load
