"""The first seed whose story finds each mutant; `python tests/simulation/mutant_seeds.py` finds them anew."""

from __future__ import annotations

import json
from pathlib import Path

from rlinf.testing.simulation import Machines, simulate

WITHIN_SEEDS = 600
FILE = Path(__file__).parent / "mutant_seeds.json"


def known_seeds() -> dict[str, int]:
    """Those of the file."""
    known: dict[str, int] = json.loads(FILE.read_text())
    return known


def first_found(machines: Machines) -> int | None:
    """The first seed whose story these machines break; None if no story does."""
    return next((seed for seed in range(WITHIN_SEEDS) if simulate(seed, machines).violation), None)


def _main() -> None:
    from mutants import MUTANTS

    known = known_seeds() if FILE.exists() else {}
    seeds = {}
    for name, machines in sorted(MUTANTS.items()):
        still = name in known and simulate(known[name], machines).violation
        seed = known[name] if still else first_found(machines)
        if seed is not None:
            seeds[name] = seed
    FILE.write_text(json.dumps(seeds, indent=1) + "\n")


if __name__ == "__main__":
    _main()
