"""A plan's findings under its table: a line each, the costly first."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_scheduler.planning import PlanWarning
from rlinf_scheduler.wording import printable

_MOST_LINES = 12


def render_warnings(warnings: Sequence[PlanWarning]) -> str:
    """A line a finding; of very many the first, and how many more there are."""
    ordered = sorted(warnings, key=lambda warning: warning.is_note)
    lines = [f"{'note' if w.is_note else 'warning'}: {printable(w.text)}\n" for w in ordered[:_MOST_LINES]]
    if len(ordered) > _MOST_LINES:
        lines.append(f"{len(ordered) - _MOST_LINES} more: --json lists all\n")
    return "".join(lines)
