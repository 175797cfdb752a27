"""Names of parts that RLinf's scheduler is made of, and this one is not: they can be imported, and say what to use."""

from __future__ import annotations

from typing import Any, Never


class _Absent(type):
    """The class of such names."""

    _rlinf_instead: str

    def __getattr__(cls, name: str) -> Never:
        raise AttributeError(_text(cls, f".{name}"), name=name, obj=cls)

    def __call__(cls, *_args: object, **_options: object) -> Never:
        raise TypeError(_text(cls, "()"))


def absent(name: str, module: str, instead: str) -> type[Any]:
    """Return what stands for a class that does not exist here.

    >>> absent("Queue", "rlinf.scheduler.example", "there are none; use `Channel`").put
    Traceback (most recent call last):
    AttributeError: Queue.put is a part of RLinf's own scheduler: here there are none; use `Channel`

    Args:
        name: its name.
        module: where RLinf has it.
        instead: what there is here, and what to use, as the end of a sentence.
    """

    def on_instance(self: object, attribute: str) -> Never:
        raise AttributeError(_text(type(self), f".{attribute}"), name=attribute, obj=self)

    return _Absent(name, (), {"__module__": module, "__getattr__": on_instance, "_rlinf_instead": instead})


def _text(cls: type, what: str) -> str:
    return f"{cls.__name__}{what} is a part of RLinf's own scheduler: here {vars(cls)['_rlinf_instead']}"
