"""Helpers for tests of programs built on rlinf."""

from rlinf.testing.local import LocalAddress, LocalRuntime

__all__ = ["LocalAddress", "LocalRuntime"]
