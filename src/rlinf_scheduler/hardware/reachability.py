"""Whether declared hardware can be reached, asked before processes that use it are started."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from rlinf_scheduler.errors import HardwareUnreachable
from rlinf_scheduler.hardware.registry import hardware_type
from rlinf_scheduler.planning import HardwareUnit

_MOST_AT_ONCE = 32


def check_reachable(units: Iterable[HardwareUnit], timeout_s: float = 5.0) -> None:
    """Run the check of every piece's type, many at a time.

    Args:
        units: the pieces that a launch uses. It is their node that has to reach them: run this there.
        timeout_s: how long one check may take.

    Raises:
        HardwareUnreachable: at least one cannot be reached; the text has a line for each.
        ConfigError: a hardware type is not known here, or its package cannot be loaded.
    """
    pieces = list(units)
    if not pieces:
        return
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(pieces)), "check-hardware") as pool:
        problems = pool.map(lambda unit: _problem(unit, timeout_s), pieces)
    failures = [problem for problem in problems if problem]
    if failures:
        raise HardwareUnreachable(failures)


def _problem(unit: HardwareUnit, timeout_s: float) -> str:
    kind = hardware_type(unit.type)
    try:
        kind.check(unit.config, timeout_s)
    except HardwareUnreachable as error:
        return "; ".join(error.failures)
    except OSError as error:
        reason = f"no answer within {timeout_s:g} s" if isinstance(error, TimeoutError) else _reason(error)
        address = kind.address(unit.config)
        place = f" at {address}" if address else ""
        return f"{unit.type} of node {unit.node_rank}{place}: {reason}"
    return ""


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()
