"""Stand-ins for heavy third parties that are not installed here: RLinf's modules can be imported without them.

As a plug-in of pytest (`-p stand_ins`), and for `import_all.py`. What is installed is used as it is: the finder comes
last. `STAND_INS` names the packages that it answers for, separated by commas.
"""

import os
import sys
from abc import ABCMeta
from importlib.machinery import ModuleSpec
from types import ModuleType


def install(names):
    """Answer for these packages, and all below them, where nothing else does."""
    sys.meta_path.append(_Finder(frozenset(names)))


class _Finder:
    def __init__(self, names):
        self._names = names

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self._names else None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        module.__path__ = []


class _Module(ModuleType):
    __version__ = "0.0.0"
    __all__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = _made(name)
        setattr(self, name, value)
        return value


class _Value:
    """What may be done with a constant that nobody knows."""

    def __fspath__(self):
        return "/a-stand-in"

    def __int__(self):
        return 0

    def __truediv__(self, _other):
        return self

    def __lt__(self, _other):
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __add__(self, _other):
        return self

    __radd__ = __mul__ = __rmul__ = __sub__ = __rsub__ = __add__


def _given_back(args, kwargs):
    """Whether something is used as a decorator."""
    return len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], _Type)


class _Type(_Value, ABCMeta):
    """Of classes that may be anything: a base, a decorator, a constant, a function."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _made(name)

    def __call__(cls, *args, **kwargs):
        if not vars(cls).get("_stands_in"):
            return super().__call__(*args, **kwargs)
        return args[0] if _given_back(args, kwargs) else super().__call__()

    def __getitem__(cls, _key):
        return cls

    def __iter__(cls):
        return iter(())


class _Anything(_Value, metaclass=_Type):
    def __init__(self, *args, **kwargs): ...

    def __init_subclass__(cls, **kwargs): ...

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _made(name)

    def __call__(self, *args, **kwargs):
        return args[0] if _given_back(args, kwargs) else _made("result")()

    def __getitem__(self, _key):
        return self

    def __iter__(self):
        return iter(())

    def __enter__(self):
        return self

    def __exit__(self, *_): ...


def _made(name):
    return _Type(name, (_Anything,), {"_stands_in": True})


if names_here := [name for name in os.environ.get("STAND_INS", "").split(",") if name]:
    install(names_here)
