"""What users give: what a value is, asked once for all arguments and configs, and names of arguments that are none."""

from __future__ import annotations

import inspect
import operator
import os
import re
from collections.abc import Callable, Iterable
from functools import wraps
from numbers import Real
from typing import Any, ParamSpec, TypeGuard, TypeVar

from rlinf_scheduler.errors import CallArgumentError, ConfigError
from rlinf_scheduler.wording import did_you_mean

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
# Thirty years: a longer deadline is none.
FOREVER_S = 1e9
_DIRECT = "_called_directly"
_DIGITS = re.compile(r"\s*\d{1,9}\s*", re.ASCII)


def whole_number(value: Any, *, lowest: int = 0, from_text: bool = False) -> int | None:
    """The whole number that a value is, or None where it is none from `lowest` on.

    Numbers of other libraries, such as numpy's, count; True and False do not.

    Args:
        value: anything.
        lowest: the lowest number that is taken.
        from_text: take text of up to nine digits too: an interpolation such as ${oc.env:PORT} gives text.

    >>> whole_number(8), whole_number("8"), whole_number("8", from_text=True), whole_number(True)
    (8, None, 8, None)
    """
    if isinstance(value, bool):
        return None
    try:
        number = int(value) if from_text and _is_digits(value) else operator.index(value)
    except TypeError:
        return None
    return number if number >= lowest else None


def is_seconds(value: Any) -> bool:
    """Whether a value is a number of seconds from 0; numbers of other libraries count, True and NaN do not.

    >>> is_seconds(0), is_seconds(2.5), is_seconds(-1), is_seconds("5"), is_seconds(True)
    (True, True, False, False, False)
    """
    return issubclass(type(value), Real) and type(value) is not bool and value >= 0


def is_encodable(text: str) -> bool:
    """Whether a message can carry a text: a half of a surrogate pair it cannot."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def absolute_path(path: Any) -> str:
    """A user's path as messages carry it: absolute, and text.

    Raises:
        ValueError: it is not UTF-8.
    """
    absolute = os.path.abspath(os.fsdecode(path))
    try:
        absolute.encode()
    except UnicodeEncodeError:
        message = f"the path {absolute!r} is not UTF-8, and messages between processes carry no other"
        raise ValueError(message) from None
    return absolute


def is_text_or_number(value: Any) -> TypeGuard[str | int]:
    """Whether a value of a config is text or a whole number, which is what may be written without quotes."""
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def _is_digits(value: Any) -> bool:
    return isinstance(value, str) and _DIGITS.fullmatch(value) is not None


def explains_calls(cls: C) -> C:
    """Let the public methods of a class answer arguments which they do not take by a CallArgumentError.

    Those that are marked by `called_directly` keep Python's own TypeError.
    """
    for name, member in inspect.getmembers_static(cls):
        function = getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(function) or _DIRECT in vars(function):
            continue
        exact = inspect.signature(function)
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in exact.parameters.values()):
            explained = explains_arguments(function)
            setattr(cls, name, explained if member is function else type(member)(explained))
    return cls


def called_directly(owner: str) -> Callable[[F], F]:
    """Mark a method that `explains_calls` puts no call around; Python's errors name it as one of `owner`.

    It is called too often for that, or takes something: Python looks for signals when a call returns, and what was
    taken would be lost if one interrupted between the return of the method and that of what is around it.
    """

    def mark(method: F) -> F:
        vars(method)[_DIRECT] = True
        method.__qualname__ = f"{owner}.{method.__name__}"
        return method

    return mark


def explains_arguments(method: Callable[P, R]) -> Callable[P, R]:
    """A function that answers arguments which it does not take by a CallArgumentError, with the nearest names."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # it has begun
            raise _explained(method, args, kwargs, error) from None

    return call


def _explained(
    method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: TypeError
) -> CallArgumentError:
    signature = inspect.signature(method)
    what = method.__qualname__
    if next(iter(signature.parameters), "") in ("self", "cls"):
        owner = args[0] if isinstance(args[0], type) else type(args[0])
        what = owner.__name__ if method.__name__ == "__init__" else f"{owner.__name__}.{method.__name__}"
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    # What Python says begins with the class that has the method, which need not be the one that people know.
    problem = str(error).partition("() ")[2] or str(error)
    return _error(what, signature, problem, kwargs)


def _error(what: str, signature: inspect.Signature, problem: str, given: Iterable[str]) -> CallArgumentError:
    parameters = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    shown = inspect.Signature(parameters)
    return CallArgumentError(f"{what}()", problem + keyword_hint(shown, given), str(shown))


def check_options(
    method: str, own: Callable[..., Any], taker: Callable[..., Any], options: Iterable[str]
) -> None:
    """Make sure that the options of a method are those of the function that takes them.

    Args:
        method: what was called, as its user names it.
        own: the method.
        taker: that function; its keywords are the options.
        options: the names that were given.

    Raises:
        CallArgumentError: one is none of these.
    """
    taken = inspect.signature(taker).parameters.values()
    known = {each.name: each for each in taken if each.kind is inspect.Parameter.KEYWORD_ONLY}
    unknown = [name for name in options if name not in known]
    if unknown:
        kept = {
            name: p for name, p in inspect.signature(own).parameters.items() if p.kind is not p.VAR_KEYWORD
        }
        signature = inspect.Signature(list({**kept, **known}.values()))
        raise _error(method, signature, f"got an unexpected keyword argument '{unknown[0]}'", unknown)


def keyword_hint(signature: inspect.Signature, given: Iterable[str]) -> str:
    """Return which option the first unknown keyword is near to, to end an error's text; "" if to none."""
    known = [p.name for p in signature.parameters.values() if p.kind is not inspect.Parameter.POSITIONAL_ONLY]
    for name in given:
        hint = "" if name in known else did_you_mean(name, known)
        if hint:
            return f"; {hint}"
    return ""


def checked_seconds(what: str, value: Any) -> float:
    """A time in seconds, of at most thirty years.

    Args:
        what: the argument's name.
        value: what was given.

    Raises:
        ConfigError: it is no number of at least 0.
    """
    if is_seconds(value):
        return float(min(value, FOREVER_S))
    raise ConfigError(f"{what}={value!r}: it is a number of seconds from 0")


def checked_deadline(timeout_s: Any) -> float | None:
    """A deadline in seconds; None is none.

    Raises:
        ConfigError: it is neither None nor a number of at least 0.
    """
    if timeout_s is None:
        return None
    if not is_seconds(timeout_s):
        raise ConfigError(f"timeout_s={timeout_s!r}: it is a number of seconds from 0, or None")
    return checked_seconds("timeout_s", timeout_s)
