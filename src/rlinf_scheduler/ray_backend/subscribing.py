"""What Ray tells a driver, asked for at leisure: where its head is gone, Ray asks anew as fast as a core can."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray._raylet

_raylet: Any = ray._raylet  # made by Cython
_PAUSE_S = 0.1


class _Unhurried:
    """After an answer that says nothing it pauses, until it is closed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._closed = threading.Event()

    def poll(self, *args: Any, **options: Any) -> Any:
        told = super().poll(*args, **options)  # type: ignore[misc]  # Ray's
        if not self._says_anything(told):
            self._closed.wait(_PAUSE_S)
        return told

    def close(self) -> None:
        self._closed.set()
        super().close()  # type: ignore[misc]  # Ray's

    def _says_anything(self, told: Any) -> bool:
        raise NotImplementedError


class _UnhurriedErrors(_Unhurried):
    """Errors of the job, each by itself."""

    def _says_anything(self, told: Any) -> bool:
        return told[1] is not None


class _UnhurriedLogs(_Unhurried):
    """Lines that the job's processes print, some at a time."""

    def _says_anything(self, told: Any) -> bool:
        return bool(told and told["lines"])


_UNHURRIED: dict[str, type[_Unhurried]] = {
    "GcsErrorSubscriber": _UnhurriedErrors,
    "GcsLogSubscriber": _UnhurriedLogs,
}


@contextmanager
def unhurried() -> Iterator[None]:
    """Have a Ray that is joined inside ask its head for no more than ten answers a second that say nothing."""
    # A Ray of another version may have other names for them; then it asks as it does.
    before = {name: getattr(_raylet, name) for name in _UNHURRIED if hasattr(_raylet, name)}
    for name, rays_own in before.items():
        setattr(_raylet, name, type(rays_own.__name__, (_UNHURRIED[name], rays_own), {}))
    try:
        yield
    finally:
        for name, rays_own in before.items():
            setattr(_raylet, name, rays_own)
