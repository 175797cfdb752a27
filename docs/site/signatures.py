"""A reader cannot pass what a method takes to name a misspelt keyword: signatures on the site leave it out."""

from __future__ import annotations

from typing import Any

import griffe

_UNKNOWN = "_unknown"


class Signatures(griffe.Extension):
    """Leaves out what takes unknown keywords."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Called by Griffe for every function that has been read."""
        for each in (func, *(func.overloads or ())):
            if _UNKNOWN in each.parameters:
                del each.parameters[_UNKNOWN]
