"""Files keep pickles, which name classes of ours: such a name is found for as long as these files are read."""

import dataclasses
import importlib
import io
import pickle
import pkgutil
import typing
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from test_api_reference import documented, public

import rlinf.scheduler
from rlinf_scheduler.comm import decode, encode
from rlinf_scheduler.comm.codec import objects
from rlinf_scheduler.comm.codec.moved import loads_of_any_version

# Names that may stand in files, of all versions whose files are read. One that is added stays.
WRITTEN = Path(__file__).parents[1] / "data" / "names_in_files.txt"
OURS = ("rlinf.", "rlinf_scheduler.")
RECORDS = (tuple, list, dict, BaseException, msgspec.Struct)


class Marked(np.ndarray):
    pass


def objects_with_memory():
    return [
        np.ones((4, 4))[::2, ::2],
        np.ones(1 << 12).view(Marked),
        np.ma.masked_equal([1, 2], 1),
        torch.ones(3),
        torch.nn.Parameter(torch.ones(3)),
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    ]


def is_ours(thing):
    return isinstance(thing, type) and thing.__module__.startswith(OURS)


def is_record(kind):
    """Whether it can be an item: the others hold threads, sockets or a session."""
    has_own_way = kind.__reduce__ is not object.__reduce__
    return not typing.is_typeddict(kind) and (
        dataclasses.is_dataclass(kind) or issubclass(kind, RECORDS) or has_own_way
    )


def classes_in(hint):
    found = [hint] if is_ours(hint) else []
    return found + [each for argument in typing.get_args(hint) for each in classes_in(argument)]


def fields_of(kind):
    """The classes of ours in a record's fields."""
    if not (dataclasses.is_dataclass(kind) or issubclass(kind, (tuple, msgspec.Struct))):
        return []
    try:
        hints = typing.get_type_hints(kind)
    except NameError:  # a class that its module imports for type checkers
        return []
    return [each for hint in hints.values() for each in classes_in(hint)]


def public_classes():
    modules = pkgutil.walk_packages(rlinf.scheduler.__path__, "rlinf.scheduler.")
    face = [each for module in modules for each in public(importlib.import_module(module.name))]
    return [each for each in (*documented(), *face) if is_ours(each)]


def written_classes():
    """Classes of ours that users may hold, and so put or save, and what these have in their fields."""
    found, left = set(), public_classes()
    while left:
        kind = left.pop()
        if kind not in found:
            found.add(kind)
            left += fields_of(kind)
    return {f"{kind.__module__}.{kind.__qualname__}" for kind in found if is_record(kind)}


def written_functions(monkeypatch):
    """The functions of ours with which arrays and tensors are made again."""
    found = set()

    class Finding(pickle.Unpickler):
        def find_class(self, module, name):
            found.add(f"{module}.{name}")
            return super().find_class(module, name)

    monkeypatch.setattr(
        objects, "_loads", lambda data, buffers=(): Finding(io.BytesIO(data), buffers=buffers).load()
    )
    for obj in objects_with_memory():
        head, *buffers = encode(obj).frames()
        decode(head, buffers)
    return {name for name in found if name.startswith(OURS)}


def find(name):
    """What a file finds under a name."""
    module, _, attribute = name.rpartition(".")
    return loads_of_any_version(f"c{module}\n{attribute}\n.".encode())


def known():
    return set(WRITTEN.read_text().split())


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions")
def test_what_may_be_written_by_name_is_on_the_list(monkeypatch):
    written = written_classes() | written_functions(monkeypatch)
    assert len(written) > 150
    assert sorted(written - known()) == [], f"add these to {WRITTEN}"


def is_found(name):
    try:
        return callable(find(name))
    except (ImportError, AttributeError):
        return False


def test_every_name_that_was_written_is_found():
    """One that is not has moved: where it is now belongs into `comm/codec/moved.py`."""
    assert [name for name in sorted(known()) if not is_found(name)] == []


def test_a_name_that_has_moved_without_an_entry_would_be_noticed():
    assert not is_found("rlinf_scheduler.queueing.item.Moved")
    assert not is_found("rlinf_scheduler.moved.ItemId")
