"""Helpers for tests of programs built on rlinf."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import declared

if TYPE_CHECKING:  # each is loaded by those who use it only
    from rlinf.testing.local import LocalAddress, LocalRuntime

__all__ = ["LocalAddress", "LocalRuntime"]

if not TYPE_CHECKING:  # which would believe that every name is there
    __getattr__ = declared(globals())
