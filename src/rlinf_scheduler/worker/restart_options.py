"""What a launch is told about ranks that die, checked before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

from rlinf_scheduler.errors import CallArgumentError, ConfigError
from rlinf_scheduler.wording import did_you_mean
from rlinf_scheduler.worker.deaths import RETURNING, VERDICTS
from rlinf_scheduler.worker.restarts import MAX_RESTARTS, WITHIN_S
from rlinf_scheduler.worker.signatures import check_arguments, check_method, kind_of
from rlinf_scheduler.worker.successors import RestartLimit

RestartOn: TypeAlias = Literal["same", "any"]
_PLACES: tuple[str, ...] = get_args(RestartOn)


def check_on_failure(wanted: object) -> None:
    """Make sure that it says what a death means.

    Raises:
        ConfigError: it does not.
    """
    if not callable(wanted) and wanted not in VERDICTS:
        known = ", ".join(map(repr, VERDICTS))
        hint = did_you_mean(wanted, VERDICTS) if isinstance(wanted, str) else ""
        problem = f"on_failure={wanted!r}: it is one of {known}, or a function that returns one"
        raise ConfigError("; ".join(filter(None, [problem, hint])))


def check_is_used(on_failure: object, **options: object) -> None:
    """Make sure that options about ranks that come back are given only where ranks may come back.

    Raises:
        ConfigError: one is given, and what dies is not started again.
    """
    if on_failure in RETURNING or callable(on_failure):
        return
    for name, value in options.items():
        if value is not None:
            problem = f"{name}= is for ranks that come back, and with on_failure={on_failure!r} none does"
            raise ConfigError(problem, hint="on_failure='restart', or a function that decides for each death")


def restart_limit(most: object, within_s: object) -> RestartLimit:
    """How often a rank comes back; None is the usual number.

    Raises:
        ConfigError: these are no such numbers.
    """
    most = MAX_RESTARTS if most is None else most
    within_s = WITHIN_S if within_s is None else within_s
    if type(most) is not int or most < 0:
        raise ConfigError(f"max_restarts={most!r}: it is a whole number from 0")
    if isinstance(within_s, bool) or not isinstance(within_s, (int, float)) or not within_s > 0:
        raise ConfigError(f"restart_window_s={within_s!r}: it is a number of seconds")
    return RestartLimit(most, float(within_s))


def may_move(wanted: object) -> bool:
    """Whether a rank whose node is gone comes back on another one.

    Raises:
        ConfigError: it does not say so.
    """
    if wanted not in (None, *_PLACES):
        raise ConfigError(f"restart_on={wanted!r}: it is one of {', '.join(map(repr, _PLACES))}")
    return wanted == "any"


def ready_method(worker_class: type, wanted: Callable[..., object] | str | None) -> str:
    """The name of the method that `ready_when` gives; "" for none.

    Raises:
        ConfigError: the class has none of that name, or it cannot be called so.
    """
    if wanted is None:
        return ""
    name = wanted if isinstance(wanted, str) else getattr(wanted, "__name__", repr(wanted))
    try:
        check_method(worker_class, name)
        check_arguments(worker_class, name, (), {})
    except (AttributeError, CallArgumentError) as error:
        raise ConfigError(f"ready_when={name!r}: {error}") from error
    if kind_of(worker_class, name) == "stream":
        raise ConfigError(f"ready_when={name!r}: it is a method that returns, and no generator")
    return name
