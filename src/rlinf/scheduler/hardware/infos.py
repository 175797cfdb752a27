"""Hardware as RLinf's programs see it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def infos_of(hardware: Iterable[Any], hardware_type: str, accelerator_model: str = "") -> list[Any]:
    """What a worker finds in `hardware_infos`.

    Args:
        hardware: what it finds in `hardware`, piece by piece.
        hardware_type: the type of these, as its placement has it.
        accelerator_model: of its node.
    """
    del hardware_type, accelerator_model
    return list(hardware)
