"""Batches between groups of different sizes: who sends which rows to whom, and the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import declared

if TYPE_CHECKING:  # each is loaded by those who use it only
    from rlinf_scheduler.routing.plan import Route, RowBlock, plan_route
    from rlinf_scheduler.routing.rows import count_rows, merge_rows, split_rows
    from rlinf_scheduler.routing.serving import RowBatch, RowServer, ask_rows

__all__ = [
    "Route",
    "RowBatch",
    "RowBlock",
    "RowServer",
    "ask_rows",
    "count_rows",
    "merge_rows",
    "plan_route",
    "split_rows",
]

if not TYPE_CHECKING:  # which would believe that every name is there
    __getattr__ = declared(globals())
