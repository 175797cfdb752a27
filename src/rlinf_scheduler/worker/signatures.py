"""What can be called on a worker class and how: mistakes are found here, before anything is sent or started."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from rlinf_scheduler.comm import Encoded, encode
from rlinf_scheduler.errors import CallArgumentError, CodecError
from rlinf_scheduler.host.protocol import CallKind, WorkerFactory
from rlinf_scheduler.keywords import keyword_hint
from rlinf_scheduler.wording import nearest_name, no_attribute
from rlinf_scheduler.worker.attributes import LIBRARY, declared_attributes

_BY_PLACE = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


def public_methods(worker_class: type) -> list[str]:
    """The names of the methods that a group has."""
    return [name for name, _ in inspect.getmembers(worker_class, callable) if not name.startswith("_")]


def is_users_method(worker_class: type, name: str) -> bool:
    """Whether a worker class has a method of that name, and not from this library."""
    if not callable(getattr(worker_class, name, None)):
        return False
    owner = next((each for each in worker_class.__mro__ if name in vars(each)), None)
    return owner is not None and not owner.__module__.startswith(LIBRARY)


def check_method(worker_class: type, name: str) -> None:
    """Make sure that a method can be called on a group.

    Raises:
        AttributeError: the class has none of that name; the text has the nearest one. Or it is private.
    """
    if name.startswith("_"):
        message = f"'{name}' is private to {worker_class.__name__}: a group calls public methods only"
        raise AttributeError(message)
    found = getattr(worker_class, name, None)
    if callable(found):
        return
    if hasattr(worker_class, name):
        reads = "WorkerGroup.get(group, " if is_users_method(worker_class, "get") else "group.get("
        message = f"{worker_class.__name__}.{name} is no method; {reads}'{name}') reads it"
        raise AttributeError(message)
    near = nearest_name(name, public_methods(worker_class))
    hint = f"; did you mean '{near}'?" if near else ""
    message = f"{worker_class.__name__} has no method '{name}'{hint}"
    raise AttributeError(message)


def check_attribute(worker_class: type, name: str) -> None:
    """Make sure that an attribute may be read through a group.

    Raises:
        AttributeError: it is private, or a method, or no worker of that class has it.
    """
    if name.startswith("_"):
        message = f"'{name}' is private to {worker_class.__name__}: a group reads public attributes only"
        raise AttributeError(message)
    found = getattr(worker_class, name, None)
    if callable(found) and inspect.isroutine(found):
        message = f"{worker_class.__name__}.{name} is a method: group.{name}(...) calls it"
        raise AttributeError(message)
    declared = declared_attributes(worker_class)
    if declared is not None and name not in declared:
        public = [each for each in declared if not each.startswith("_")]
        raise AttributeError(no_attribute(worker_class.__name__, name, public))


def kind_of(worker_class: type, method: str) -> CallKind:
    """Whether a method streams its values."""
    return "stream" if _is_stream(worker_class, method) else "call"


@lru_cache(maxsize=1024)
def _is_stream(worker_class: type, method: str) -> bool:
    function = inspect.unwrap(getattr(worker_class, method))
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def check_arguments(worker_class: type, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Make sure that a method, or `__init__`, takes these arguments.

    Raises:
        CallArgumentError: it does not.
    """
    if _takes(worker_class, method, len(args), tuple(kwargs)):
        return
    signature = _signature_of(worker_class, method)
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        named = worker_class.__name__ if method == "__init__" else f"{worker_class.__name__}.{method}"
        problem = f"{error}{keyword_hint(signature, kwargs)}"
        raise CallArgumentError(f"{named}()", problem, str(signature)) from None


def encoded_factory(factory: WorkerFactory) -> Encoded:
    """A worker class and its arguments as bytes.

    Raises:
        CodecError: something cannot be sent; the text names the argument.
    """
    try:
        return encode(factory)
    except CodecError as error:
        worker_class, what = factory.worker_class, f"{factory.worker_class.__name__}()"
        raise unsendable(what, worker_class, "__init__", factory.args, factory.kwargs, error) from error


def unsendable(
    what: str,
    worker_class: type,
    method: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    refusal: CodecError,
) -> CodecError:
    """The error of a call whose arguments cannot be encoded: it names the one that cannot."""
    for name, value in _named_arguments(worker_class, method, args, kwargs):
        try:
            encode(value)
        except CodecError as error:
            return CodecError(f"{what}: argument '{name}': {error}")
    return CodecError(f"{what}: {refusal}")


def _named_arguments(
    worker_class: type, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    signature = _signature_of(worker_class, method)
    known = [] if signature is None else list(signature.parameters.values())
    by_place = [each.name for each in known if each.kind in _BY_PLACE]
    more = next((each.name for each in known if each.kind is inspect.Parameter.VAR_POSITIONAL), "args")
    for place, value in enumerate(args):
        rest = place - len(by_place)
        yield (by_place[place] if rest < 0 else f"{more}[{rest}]"), value
    yield from kwargs.items()


@lru_cache(maxsize=1024)
def _takes(worker_class: type, method: str, num_args: int, names: tuple[str, ...]) -> bool:
    """Whether a method takes so many arguments by position and these by name: their values do not matter."""
    signature = _signature_of(worker_class, method)
    if signature is None:
        return True
    try:
        signature.bind(*[None] * num_args, **dict.fromkeys(names))
    except TypeError:
        return False
    return True


@lru_cache(maxsize=1024)
def _signature_of(worker_class: type, method: str) -> inspect.Signature | None:
    """What a method takes beside `self`; None where that cannot be said."""
    function: Callable[..., Any] = getattr(worker_class, method)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    is_bound = inspect.ismethod(function) or isinstance(
        inspect.getattr_static(worker_class, method), staticmethod
    )
    parameters = list(signature.parameters.values())
    if is_bound or not parameters or parameters[0].kind is inspect.Parameter.VAR_POSITIONAL:
        return signature
    return signature.replace(parameters=parameters[1:])
