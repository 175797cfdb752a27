"""The first seed whose story finds each mutant.

`PYTHONPATH=. python tests/simulation/mutant_seeds.py` finds them anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from simulator import Machines, Report, simulate

WITHIN_SEEDS = 600
FILE = Path(__file__).parent / "mutant_seeds.json"


def known_seeds() -> dict[str, int]:
    """Those of the file."""
    known: dict[str, int] = json.loads(FILE.read_text())
    return known


def first_found(machines: Machines) -> int | None:
    """The first seed whose story these machines break; None if no story does."""
    return first_broken(partial(simulate, machines=machines))


def first_broken(story: Callable[[int], Report]) -> int | None:
    """The first seed whose story breaks a promise."""
    return next((seed for seed in range(WITHIN_SEEDS) if story(seed).violation), None)


def _main() -> None:
    from checkpoint_mutants import MERGE_MUTANTS
    from durable_mutants import DURABLE_MUTANTS
    from mailbox_mutants import MAILBOX_MUTANTS
    from mutants import MUTANTS
    from product_mutants import PRODUCT_MUTANTS
    from shortcut_mutants import SHORTCUT_MUTANTS

    known = known_seeds() if FILE.exists() else {}
    seeds = {}
    stories = {name: partial(simulate, machines=machines) for name, machines in MUTANTS.items()}
    broken = PRODUCT_MUTANTS | SHORTCUT_MUTANTS | DURABLE_MUTANTS | MERGE_MUTANTS | MAILBOX_MUTANTS
    stories |= {name: mutant.story for name, mutant in broken.items()}
    for name, story in sorted(stories.items()):
        still = name in known and story(known[name]).violation
        seed = known[name] if still else first_broken(story)
        if seed is not None:
            seeds[name] = seed
    FILE.write_text(json.dumps(seeds, indent=1) + "\n")


if __name__ == "__main__":
    _main()
