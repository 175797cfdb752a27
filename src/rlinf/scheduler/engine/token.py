"""Ray's authentication as this process has it: set for one Ray, and put back when that is left."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping

from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

from rlinf.scheduler.engine.ray_token import MODE_VARIABLE, PATH_VARIABLE, TOKEN_VARIABLE, own_token


def use_fresh_token() -> Callable[[], None]:
    """Have this process and the Ray that it starts use a new random token; returns what restores the old state.

    Without it, whoever reaches this machine's ports could run code on the nodes of a simulation. The token lies in
    the environment, which the nodes' processes inherit, and in no file. A mode that the user has set
    (`RAY_AUTH_MODE=disabled`, say) stays.
    """
    if os.environ.get(MODE_VARIABLE) is not None:
        return lambda: None
    return _use({MODE_VARIABLE: "token", TOKEN_VARIABLE: secrets.token_hex(32), PATH_VARIABLE: None})


def use_own_token() -> Callable[[], None]:
    """Have this process and the Ray that it starts use this user's token; returns what restores the old state.

    Ray would do the same, and let everybody read the file in which it keeps it.
    """
    if os.environ.get(MODE_VARIABLE) is not None:
        return lambda: None
    own_token(os.environ)
    return _use({MODE_VARIABLE: "token"})


def use_mode(mode: str) -> Callable[[], None]:
    """Have this process speak to a Ray of that authentication mode; returns what restores the old state.

    Args:
        mode: "token" or "disabled"; "": as it is.
    """
    return _use({MODE_VARIABLE: mode}) if mode else lambda: None


def _use(values: Mapping[str, str | None]) -> Callable[[], None]:
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    return lambda: _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    # Ray reads the variables once: make it read them again, the mode before the token.
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
