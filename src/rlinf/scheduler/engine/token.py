"""A Ray token of one simulation's own: without it, whoever reaches this machine's ports could run code on its nodes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable

from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

_MODE, _TOKEN, _PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


def use_fresh_token() -> Callable[[], None]:
    """Have this process and the Ray that it starts use a new random token; returns what restores the old state.

    The token lies in the environment, which the nodes' processes inherit, and in no file. A mode that the user has
    set (`RAY_AUTH_MODE=disabled`, say) stays.
    """
    if os.environ.get(_MODE) is not None:
        return lambda: None
    before = {name: os.environ.get(name) for name in (_MODE, _TOKEN, _PATH)}
    _set({_MODE: "token", _TOKEN: secrets.token_hex(32), _PATH: None})
    return lambda: _set(before)


def _set(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    # Ray reads the variables once: make it read them again, the mode before the token.
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
