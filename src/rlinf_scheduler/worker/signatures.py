"""What can be called on a worker class and how: mistakes are found here, before anything is sent or started."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeAlias

from rlinf_scheduler.checks import keyword_hint
from rlinf_scheduler.comm import Buffer, encode
from rlinf_scheduler.errors import CallArgumentError, CodecError, ConfigError
from rlinf_scheduler.host.protocol import CallKind, WorkerFactory
from rlinf_scheduler.wording import nearest_name, no_attribute

_BY_PLACE = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
# Where a class is defined that belongs to this library.
LIBRARY = "rlinf_scheduler.", "rlinf.scheduler."
_KNOWN_DECORATORS = frozenset(
    [
        "Live",
        "abstractmethod",
        "cached_property",
        "classmethod",
        "dataclass",
        "final",
        "inference_mode",
        "no_grad",
        "overload",
        "override",
        "property",
        "setter",
        "staticmethod",
        "timer",
    ]
)
# Of what a class assigns in its body: none of them is a function.
_PLAIN_VALUES = ast.Constant | ast.List | ast.Tuple | ast.Dict | ast.Set | ast.UnaryOp | ast.BinOp | None
# Functions that may set an attribute whose name is a text.
_SET_BY_TEXT = frozenset(["eval", "exec", "locals", "setattr", "vars"])

Method: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


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


def encoded_factory(factory: WorkerFactory) -> tuple[Buffer, ...]:
    """A worker class and its arguments as bytes, as they are now.

    Raises:
        CodecError: something cannot be sent; the text names the argument.
    """
    try:
        return tuple(encode(factory).snapshot())
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


@lru_cache(maxsize=256)
def declared_attributes(worker_class: type) -> frozenset[str] | None:
    """The names of all attributes that a worker may have; None where only the worker knows.

    That is so if its source cannot be read, or if others may set some: a method does anything else with `self` than to
    name its attributes, or a function from elsewhere is a method, or around one.
    """
    names = set(dir(worker_class))
    for each in worker_class.__mro__:
        if each is object or each.__module__.startswith(LIBRARY):
            continue
        of_class = _attributes_of(each)
        if of_class is None:
            return None
        names |= of_class
    return frozenset(names)


def _attributes_of(each: type) -> set[str] | None:
    """What the body of one class says."""
    if "__getattr__" in vars(each) or "__getattribute__" in vars(each):
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(each)))
    except (OSError, TypeError, SyntaxError):
        return None
    definition = tree.body[0]
    if not isinstance(definition, ast.ClassDef) or not _are_known(definition.decorator_list):
        return None
    if not all(method is not None and _only_names(method) for method in _methods(definition)):
        return None
    nodes = list(ast.walk(definition))
    if any(isinstance(node, ast.Name) and node.id in _SET_BY_TEXT for node in nodes):
        return None
    # Whatever they are set on: a method may also set them by the name of its class.
    stored = {
        node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    return stored | set(inspect.get_annotations(each))


def _methods(definition: ast.ClassDef) -> Iterator[Method | None]:
    """The methods that a class's instances have; None for what may be, or hold, one that is not seen here."""
    for each in definition.body:
        if isinstance(each, Method):
            if not _are_known(each.decorator_list):
                yield None
            elif not {"staticmethod", "classmethod"} & set(map(_name_of, each.decorator_list)):
                yield each
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            if not isinstance(each.value, _PLAIN_VALUES):
                yield None
        elif not isinstance(each, ast.Expr | ast.Pass | ast.ClassDef):
            yield None


def _are_known(decorators: list[ast.expr]) -> bool:
    """Whether what is around a class or a method sets no attributes but such as the class says."""
    return all(_name_of(each) in _KNOWN_DECORATORS for each in decorators)


def _name_of(decorator: ast.expr) -> str:
    """Its last name: "timer" for `@Worker.timer("generate")`."""
    bare = decorator.func if isinstance(decorator, ast.Call) else decorator
    return bare.attr if isinstance(bare, ast.Attribute) else bare.id if isinstance(bare, ast.Name) else ""


def _only_names(method: Method) -> bool:
    """Whether a method does nothing with its first argument but to name attributes of it, and no special ones."""
    positional = [*method.args.posonlyargs, *method.args.args]
    own = positional[0].arg if positional else ""
    attributes = [
        node
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == own
    ]
    used = sum(isinstance(node, ast.Name) and node.id == own for node in ast.walk(method))
    return used == len(attributes) and not any(_is_special(node.attr) for node in attributes)


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


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
