"""What a value of a user's is, asked once for all arguments and configs."""

from __future__ import annotations

import operator
import os
import re
from numbers import Real
from typing import Any, TypeGuard

# Thirty years: a longer deadline is none.
FOREVER_S = 1e9
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
