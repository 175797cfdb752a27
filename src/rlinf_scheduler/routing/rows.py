"""The rows of a batch: counted, split and merged along the first dimension. Pure, without numpy and torch."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import accumulate
from typing import Any

from rlinf_scheduler.errors import RouteError
from rlinf_scheduler.wording import counted

_SHARED = (bool, int, float, complex, str, bytes, type(None))


def count_rows(batch: Any) -> int:
    """Return how many rows a batch has.

    Tensors and arrays have rows along their first dimension, a list's rows are its items. The values of a dict, the
    fields of a dataclass and the items of a tuple are columns: all have the same number of rows. None, numbers, text
    and tensors without a dimension belong to every row, and say nothing of their number.

    >>> count_rows({"prompts": ["a", "b", "c"], "tags": None, "step": 7})
    3

    Raises:
        RouteError: columns have different numbers of rows, something cannot be split, or nothing has rows.
    """
    first: tuple[str, int] | None = None
    for path, column in _columns(batch, "batch"):
        rows = len(column)
        if first is None:
            first = path, rows
        elif rows != first[1]:
            raise RouteError("", "", f"{first[0]} has {counted(first[1], 'row')}, and {path} has {rows}")
    if first is None:
        raise RouteError("", "", f"nothing in it has rows: {_kind(batch)}")
    return first[1]


def split_rows(batch: Any, sizes: Sequence[int]) -> list[Any]:
    """Return the parts of a batch that have so many rows, one after the other.

    Tensors and arrays in them are views of the batch's. What belongs to every row is in every part.

    >>> split_rows({"prompts": ["a", "b", "c"], "step": 7}, [2, 1])
    [{'prompts': ['a', 'b'], 'step': 7}, {'prompts': ['c'], 'step': 7}]

    Raises:
        RouteError: the sizes do not add up to the batch's rows; otherwise as `count_rows`.
    """
    if any(True for _ in _columns(batch, "batch")) and sum(sizes) != (rows := count_rows(batch)):
        raise RouteError("", "", f"parts of {', '.join(map(str, sizes))} rows are not the batch's {rows}")
    stops = [*accumulate(sizes)]
    return [_cut(batch, stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]


def merge_rows(parts: Sequence[Any]) -> Any:
    """Return one batch of the rows of several, in their order: what `split_rows` would make these parts of.

    One part is returned as it is; of several, tensors and arrays are copied once.

    >>> merge_rows([{"prompts": ["a", "b"], "step": 7}, {"prompts": ["c"], "step": 7}])
    {'prompts': ['a', 'b', 'c'], 'step': 7}

    Raises:
        RouteError: there are none, they are of different forms, or what belongs to every row differs.
    """
    if not parts:
        raise RouteError("", "", "there is nothing to merge")
    return parts[0] if len(parts) == 1 else _merged(parts, "batch")


def _columns(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What has rows in a batch, with where it stands."""
    if _has_rows(value):
        yield path, value
    elif (named := _members(value)) is not None:
        for name, member in named:
            yield from _columns(member, path + name)
    elif not _is_shared(value):
        raise _unfit(path, value)


def _cut(value: Any, start: int, stop: int) -> Any:
    if _has_rows(value):
        return value[start:stop]
    return _rebuilt(value, lambda _name, member: _cut(member, start, stop))


def _merged(parts: Sequence[Any], path: str) -> Any:
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        kinds = ", ".join(dict.fromkeys(map(_kind, parts)))
        raise RouteError("", "", f"{path} is not the same in all parts: {kinds}")
    if isinstance(first, list):
        return [row for part in parts for row in part]
    if _has_rows(first):
        return _concatenated(parts, path)
    if _members(first) is None:
        return _same(parts, path)
    members = [dict(_members(part) or ()) for part in parts]
    for other in members:
        if other.keys() != members[0].keys():
            unlike = ", ".join(sorted(path + name for name in other.keys() ^ members[0].keys()))
            raise RouteError("", "", f"not all parts have {unlike}")
    return _rebuilt(first, lambda name, _: _merged([each[name] for each in members], path + name))


def _concatenated(parts: Sequence[Any], path: str) -> Any:
    try:
        if _is_tensor(parts[0]):
            return sys.modules["torch"].cat(list(parts))
        return sys.modules["numpy"].concatenate(parts)
    except (ValueError, RuntimeError, TypeError) as error:
        shapes = ", ".join(str(tuple(part.shape)) for part in parts)
        raise RouteError("", "", f"{path}: parts of shapes {shapes} cannot be merged: {error}") from error


def _same(parts: Sequence[Any], path: str) -> Any:
    """What belongs to every row."""
    first = parts[0]
    if not _is_shared(first):
        raise _unfit(path, first)
    for part in parts:
        is_nan = bool(part != part) and bool(first != first)
        if part is not first and not is_nan and not bool(part == first):
            raise RouteError("", "", f"{path} is not the same in all parts: {first!r}, {part!r}")
    return first


def _members(value: Any) -> list[tuple[str, Any]] | None:
    """The columns of a dict, a tuple or a dataclass, with how each is written; None of anything else."""
    if isinstance(value, dict):
        return [(f"[{key!r}]", member) for key, member in value.items()]
    if isinstance(value, tuple):
        return [(f"[{index}]", member) for index, member in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name)) for field in fields(value)]
    return None


def _rebuilt(value: Any, make: Callable[[str, Any], Any]) -> Any:
    """The same dict, tuple or dataclass with other columns; anything else as it is."""
    named = _members(value)
    if named is None:
        return value
    made = [make(name, member) for name, member in named]
    if isinstance(value, dict):
        return dict(zip(value, made, strict=True))
    if isinstance(value, tuple):
        return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
    other = copy.copy(value)
    for field, member in zip(fields(value), made, strict=True):
        object.__setattr__(other, field.name, member)  # it may be frozen
    return other


def _has_rows(value: Any) -> bool:
    return isinstance(value, list) or ((_is_tensor(value) or _is_array(value)) and value.ndim > 0)


def _is_shared(value: Any) -> bool:
    return isinstance(value, _SHARED) or _is_tensor(value) or _is_array(value) or _is_scalar(value)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _is_scalar(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def _unfit(path: str, value: Any) -> RouteError:
    known = "tensors, arrays and lists, in dicts, tuples and dataclasses; or give split= and merge="
    return RouteError("", "", f"{path} is {_kind(value)}, which has no rows to split: {known}")


def _kind(value: Any) -> str:
    name = type(value).__qualname__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
