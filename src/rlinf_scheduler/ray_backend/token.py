"""Ray's authentication as this process has it: set for one Ray, and put back when that is left."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping

from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

from rlinf_scheduler.ray_backend.authentication import TOKEN, Access
from rlinf_scheduler.ray_backend.node.variables import set_all
from rlinf_scheduler.ray_backend.ray_token import MODE_VARIABLE, PATH_VARIABLE, TOKEN_VARIABLE, own_token


def use_fresh_token() -> Callable[[], None]:
    """Have this process and the Ray that it starts use a new random token; returns what restores the old state.

    Without it, any client of this machine's ports could run code on the nodes of a simulation. The token lies in
    the environment, which the nodes' processes inherit, and in no file. A mode "disabled" that the user has set stays.
    """
    if _is_turned_off():
        return lambda: None
    return _use({MODE_VARIABLE: TOKEN, TOKEN_VARIABLE: secrets.token_hex(32), PATH_VARIABLE: None})


def use_own_token() -> Callable[[], None]:
    """Have this process and the Ray that it starts use this user's token for it; returns what restores the old state.

    Ray by itself would put one into the user's home, for everybody to read, and turn authentication on with it for
    every Ray that this user starts from then on. A mode "disabled" that the user has set stays.
    """
    if _is_turned_off():
        return lambda: None
    return use_access(Access(TOKEN, own_token(os.environ)))


def use_access(access: Access) -> Callable[[], None]:
    """Have this process speak to a Ray as that wants it; returns what restores the old state."""
    settings = access.settings()
    return _use(settings) if settings else lambda: None


def _is_turned_off() -> bool:
    return os.environ.get(MODE_VARIABLE, TOKEN).strip().lower() != TOKEN


def _use(values: Mapping[str, str | None]) -> Callable[[], None]:
    before = _set(values)

    def restore() -> None:
        _set(before)

    return restore


def _set(values: Mapping[str, str | None]) -> dict[str, str | None]:
    before = set_all(values)
    # Ray reads the variables once: make it read them again, the mode before the token.
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    return before
