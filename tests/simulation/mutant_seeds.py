"""A seed whose story finds each mutant: the first, or one whose story is short.

`PYTHONPATH=. python tests/simulation/mutant_seeds.py` finds them anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from simulator import Report

FIND_ANEW = "`PYTHONPATH=. python tests/simulation/mutant_seeds.py`"
WITHIN_SEEDS = 600
HERE = Path(__file__).parent
FILE = HERE / "mutant_seeds.json"
# Of a mutant, what is called whatever it breaks.
_TOLD_BY = ("story", "whole_story", "at_work", "__init__")


def known_seeds() -> dict[str, int]:
    """Those of the file."""
    known: dict[str, int] = json.loads(FILE.read_text())
    return known


def first_broken(mutant: Any) -> int | None:
    """The first seed whose story a mutant breaks, and what it stands for does not."""
    broken = (seed for seed in range(WITHIN_SEEDS) if mutant.story(seed).violation)
    return next((seed for seed in broken if not mutant.whole_story(seed).violation), None)


def is_called(story: Callable[[int], Report], seeds: Iterable[int] = range(60)) -> bool:
    """Whether anything of a mutant is called in its stories: if nothing is, what it breaks is somewhere else now."""
    called = set()

    def note(frame: FrameType, event: str, _about: object) -> None:
        code, by = frame.f_code, frame.f_back
        is_making = by is None or by.f_code.co_name == "at_work"
        if event == "call" and not is_making and code.co_filename.startswith(f"{HERE}/"):
            called.add(code.co_name)

    for seed in seeds:
        sys.setprofile(note)
        try:
            story(seed)
        finally:
            sys.setprofile(None)
        if called.difference(_TOLD_BY):
            return True
    return False


def _main() -> None:
    from mutants import MUTANTS

    known = known_seeds() if FILE.exists() else {}
    seeds = {}
    for name, mutant in sorted(MUTANTS.items()):
        still = name in known and mutant.story(known[name]).violation
        seed = known[name] if still else first_broken(mutant)
        if seed is not None:
            seeds[name] = seed
    FILE.write_text(json.dumps(seeds, indent=1) + "\n")


if __name__ == "__main__":
    _main()
