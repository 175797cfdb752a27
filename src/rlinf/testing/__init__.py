"""Helpers for tests of programs built on rlinf."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.testing.local import LocalAddress, LocalRuntime
from rlinf_scheduler.lazy import loader

if TYPE_CHECKING:  # loaded by those who use it only
    from rlinf_scheduler.worker.replay import Replay

__all__ = ["LocalAddress", "LocalRuntime", "Replay"]

if not TYPE_CHECKING:  # which would believe that every name is there
    __getattr__ = loader(globals(), {"Replay": "rlinf_scheduler.worker.replay"})
