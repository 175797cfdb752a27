"""The module of a program's own that every process of a job imports first."""

from __future__ import annotations

import importlib
import os

from rlinf_scheduler.errors import ConfigError

EXTENSION_VARIABLE = "RLINF_EXT_MODULE"
# What this process has loaded.
_loaded: set[str] = set()


def extension_named() -> str:
    """The module that this process's environment names, or ""."""
    return os.environ.get(EXTENSION_VARIABLE, "").strip()


def load_extension() -> None:
    """Import the module, and call its `register()` if it has one; once in a process.

    There a program adds hardware types, environments or models of its own.

    Raises:
        ConfigError: it cannot be imported, or its `register` raised; that is the cause.
    """
    name = extension_named()
    if not name or name in _loaded:
        return
    _loaded.add(name)  # now: what it imports may ask for it again
    try:
        module = importlib.import_module(name)
        register = getattr(module, "register", None)
        if register is not None:
            register()
    except Exception as error:
        _loaded.discard(name)
        doing = f"{EXTENSION_VARIABLE}={name}: the module cannot be loaded"
        raise ConfigError(f"{doing}: {type(error).__name__}: {error}") from error
