"""Imported first: lets the programs under `examples/` be found here and, with this process's path, by its workers."""

from __future__ import annotations

import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"

for _name in ("cartpole", "grpo"):
    if str(EXAMPLES / _name) not in sys.path:
        sys.path.append(str(EXAMPLES / _name))
