"""A plugin for mypy that types `group.method(...)`: as `group.call(Policy.method, ...)` is typed without it.

    [tool.mypy]
    plugins = ["rlinf_scheduler.mypy_plugin"]

Without it, `group.method` is whatever `WorkerGroup.__getattr__` gives. With it, a name that the group's class does not
have and arguments that its method does not take are errors, and the result has the method's type: a `GroupResult`, or
a `GroupStream` of what yields its values.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.checker import TypeChecker
from mypy.maptype import map_instance_to_supertype
from mypy.nodes import ARG_STAR, ARG_STAR2, Decorator, FuncBase, TypeInfo, Var
from mypy.plugin import AttributeContext, MethodSigContext, Plugin
from mypy.types import (
    AnyType,
    CallableType,
    FunctionLike,
    Instance,
    Overloaded,
    ProperType,
    Type,
    TypeOfAny,
    TypeVarType,
    get_proper_type,
)

_GROUP = "rlinf_scheduler.worker.group.WorkerGroup"
_SCATTERED = "rlinf_scheduler.worker.group.ScatteredGroup"
_RESULT = ("rlinf_scheduler.worker.result", "GroupResult")
_STREAM = ("rlinf_scheduler.worker.stream", "GroupStream")


def plugin(_mypy_version: str) -> type[Plugin]:
    """What mypy asks a plugin's module for."""
    return GroupPlugin


class GroupPlugin(Plugin):
    """Types the attributes that a group has by its worker class."""

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        """What types `group.name`, for an expression `fullname` of `<class>.name`."""
        owner, _, name = fullname.rpartition(".")
        return (lambda context: _remote_method(context, name)) if owner == _GROUP else None

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        """What types a call of a method that groups have, where the worker class has one of that name."""
        owner, _, name = fullname.rpartition(".")
        return (lambda context: _signature(context, name)) if owner == _GROUP else None


def _signature(context: MethodSigContext, name: str) -> FunctionLike:
    """The signature of `group.name(...)`, where groups have a method of that name."""
    ours, group = context.default_signature, get_proper_type(context.type)
    if not isinstance(group, Instance) or not group.type.get(name):
        return ours
    about = AttributeContext(context.type, ours, False, context.context, context.api)
    users = get_proper_type(_remote_method(about, name))
    return users if isinstance(users, CallableType) else ours


def _remote_method(context: AttributeContext, name: str) -> Type:
    """The type of `group.name`."""
    group, checker = get_proper_type(context.type), context.api
    if not isinstance(group, Instance) or not isinstance(checker, TypeChecker):
        return context.default_attr_type
    own = next(base for base in group.type.mro if base.fullname == _GROUP)
    worker = _bound_of(map_instance_to_supertype(group, own).args[0])
    if not isinstance(worker, Instance) or worker.type.fullname == "builtins.object":
        return context.default_attr_type
    if group.type.get(name) and (name.startswith("_") or not _is_users_method(worker, name)):
        return context.default_attr_type
    if name.startswith("_"):
        checker.fail(
            f'"{name}" is private to "{worker.type.name}": a group calls public methods only', context.context
        )
        return AnyType(TypeOfAny.from_error)
    # Which reports a name that is not there, with the nearest one that is.
    method = get_proper_type(
        checker.expr_checker.analyze_external_member_access(name, worker, context.context)
    )
    if isinstance(method, AnyType):
        return method if method.type_of_any == TypeOfAny.from_error else context.default_attr_type
    if isinstance(method, Instance) and method.type.get("__call__"):  # what a decorator made
        method = get_proper_type(
            checker.expr_checker.analyze_external_member_access("__call__", method, context.context)
        )
    if not isinstance(method, FunctionLike) or _is_attribute(worker, name):
        checker.fail(
            f'"{name}" of "{worker.type.name}" is no method; group.get("{name}") reads it', context.context
        )
        return AnyType(TypeOfAny.from_error)
    signatures = [_as_called(checker, each) for each in method.items]
    if group.type.has_base(_SCATTERED):
        signatures = [_with_any_arguments(each) for each in signatures]
    return signatures[0] if len(signatures) == 1 else Overloaded(signatures)


def _bound_of(worker: Type) -> ProperType:
    """The class whose methods may be called: of `WorkerGroup[T]`, what `T` is bound to."""
    proper = get_proper_type(worker)
    return get_proper_type(proper.upper_bound) if isinstance(proper, TypeVarType) else proper


def _is_users_method(worker: Instance, name: str) -> bool:
    """Whether its class has a method of that name, and not from this library."""
    owner = next((each for each in worker.type.mro if name in each.names), None)
    if owner is None or owner.fullname.startswith("rlinf_scheduler."):
        return False
    return isinstance(owner.names[name].node, FuncBase | Decorator) and not _is_attribute(worker, name)


def _is_attribute(worker: Instance, name: str) -> bool:
    """Whether it is a property or what an instance has, whatever its type: a group calls what the class has."""
    symbol = worker.type.get(name)
    node = symbol.node if symbol is not None else None
    if isinstance(node, Var):
        return not node.is_initialized_in_class
    return isinstance(node, Decorator) and node.func.is_property


def _as_called(checker: TypeChecker, method: CallableType) -> CallableType:
    """A method's signature on a group."""
    returned = get_proper_type(method.ret_type)
    if isinstance(returned, Instance):
        for base, index, wrapper in (
            ("typing.Coroutine", 2, _RESULT),
            ("typing.Iterator", 0, _STREAM),
            ("typing.AsyncIterator", 0, _STREAM),
        ):
            if returned.type.has_base(base):
                general = next(each for each in returned.type.mro if each.fullname == base)
                value = map_instance_to_supertype(returned, general).args[index]
                return method.copy_modified(ret_type=_of_ours(checker, wrapper, value))
    return method.copy_modified(ret_type=_of_ours(checker, _RESULT, method.ret_type))


def _of_ours(checker: TypeChecker, name: tuple[str, str], value: Type) -> Instance:
    module, class_name = name
    found = checker.modules[module].names[class_name].node
    if not isinstance(found, TypeInfo):
        message = f"{module}.{class_name} is no class"
        raise TypeError(message)
    return Instance(found, [value])


def _with_any_arguments(method: CallableType) -> CallableType:
    """A view that `scatter` made fills in some of them by itself."""
    anything = AnyType(TypeOfAny.explicit)
    return method.copy_modified(
        arg_types=[anything, anything],
        arg_kinds=[ARG_STAR, ARG_STAR2],
        arg_names=[None, None],
        is_ellipsis_args=True,
    )
