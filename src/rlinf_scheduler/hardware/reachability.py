"""Whether declared hardware can be reached, asked before processes that use it are started."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from rlinf_scheduler.errors import HardwareUnreachable, SchedulerError
from rlinf_scheduler.hardware.registry import hardware_type
from rlinf_scheduler.planning import HardwareUnit

_MOST_AT_ONCE = 32
Of = TypeVar("Of")


def check_reachable(units: Iterable[HardwareUnit], timeout_s: float = 5.0) -> None:
    """Run the check of every piece's type, many at a time.

    Args:
        units: the pieces that a launch uses. It is their node that has to reach them: run this there.
        timeout_s: how long one check may take.

    Raises:
        HardwareUnreachable: at least one cannot be reached; the text has a line for each.
        ConfigError: a hardware type is not known here, or its package cannot be loaded.
    """
    failures = [problem for problem in _of_each(units, lambda unit: _problem(unit, timeout_s)) if problem]
    if failures:
        raise HardwareUnreachable(failures)


@dataclass(frozen=True, slots=True)
class HardwareProblem:
    """What is wrong with a piece.

    Attributes:
        text: what is not there.
        stops_a_launch: whether a launch fails of it; else it is logged.
    """

    text: str
    stops_a_launch: bool


def find_problems(units: Iterable[HardwareUnit], timeout_s: float = 5.0) -> list[HardwareProblem]:
    """Run the check of every piece's type as `check_reachable` does, and return what it would say or raise.

    Raises:
        ConfigError: as above.
    """
    found = _of_each(units, lambda unit: _found(unit, timeout_s))
    return [problem for problem in found if problem is not None]


def _found(unit: HardwareUnit, timeout_s: float) -> HardwareProblem | None:
    # It loads pydantic: only for whom a piece was given to look at.
    from rlinf_scheduler.hardware.robots import KnownRobot  # noqa: PLC0415

    kind = hardware_type(unit.type)
    if isinstance(kind, KnownRobot) and not kind.stops_a_launch(unit.config):
        problems = kind.problems(unit.config, timeout_s)
        return HardwareProblem("; ".join(problems), stops_a_launch=False) if problems else None
    try:
        problem = _problem(unit, timeout_s)
    except SchedulerError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a program's own check raises: a launch fails of it, too
        problem = f"{unit.type} of node {unit.node_rank}: its check raised {type(error).__name__}: {error}"
    return HardwareProblem(problem, stops_a_launch=True) if problem else None


def _of_each(units: Iterable[HardwareUnit], look: Callable[[HardwareUnit], Of]) -> list[Of]:
    pieces = list(units)
    if not pieces:
        return []
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(pieces)), "check-hardware") as pool:
        return list(pool.map(look, pieces))


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
