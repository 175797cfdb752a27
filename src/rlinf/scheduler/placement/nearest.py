"""The nearest of the names that exist, for errors about one that does not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LISTED_NAMES = 12


def nearest_name(name: str, known: Iterable[str]) -> str:
    """The known name that is spelt most like `name`, or "" where none is near.

    >>> nearest_name("nodegroup", ["node_group", "placement"])
    'node_group'
    """
    # Of a very long name only the start is compared: the comparison is quadratic.
    found = difflib.get_close_matches(name[:80], list(known), n=1, cutoff=0.6)
    return found[0] if found else ""


def list_names(names: Iterable[str]) -> str:
    """Names for an error text: quoted, and only the first of very many.

    >>> list_names(["actor", "rollout"])
    "'actor', 'rollout'"
    """
    every = list(names)
    shown = ", ".join(f"'{name}'" for name in every[:_LISTED_NAMES])
    rest = len(every) - _LISTED_NAMES
    return f"{shown} and {rest} more" if rest > 0 else shown
