"""Options that are misspelt: the error names the nearest one, and what else there is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from rlinf.scheduler.errors import CallArgumentError
from rlinf.scheduler.wording import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")


def explains_arguments(method: Callable[P, R]) -> Callable[P, R]:
    """A method that answers arguments which it does not take by a CallArgumentError, with the nearest names."""

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
    owner = args[0] if isinstance(args[0], type) else type(args[0])
    what = owner.__name__ if method.__name__ == "__init__" else f"{owner.__name__}.{method.__name__}"
    parameters = list(inspect.signature(method).parameters.values())[1:]
    signature = inspect.Signature([each.replace(annotation=inspect.Parameter.empty) for each in parameters])
    # What Python says begins with the class that has the method, which need not be the one that people know.
    problem = str(error).partition("() ")[2] or str(error)
    return CallArgumentError(f"{what}()", problem + keyword_hint(signature, kwargs), str(signature))


def keyword_hint(signature: inspect.Signature, given: Iterable[str]) -> str:
    """What the first keyword may have meant that is none, as the end of an error's text; "" if nothing is near."""
    known = [p.name for p in signature.parameters.values() if p.kind is not inspect.Parameter.POSITIONAL_ONLY]
    for name in given:
        hint = "" if name in known else did_you_mean(name, known)
        if hint:
            return f"; {hint}"
    return ""
