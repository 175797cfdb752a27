"""The API reference has every public name, names nothing that is not there, and finds words for all of it."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import rlinf.scheduler
import rlinf.testing
import rlinf_scheduler
import rlinf_scheduler.placement
from rlinf_scheduler import engines, errors, events

DOCS = Path(__file__).parents[2] / "docs"
ENGINES_STAND_ON = {
    "vllm",
    "transformers",
}  # what may not be installed: their classes are checked where it is
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def loaded(path):
    """What a directive names: a module, or something in one."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


def where_installed(load, *args):
    """What that gives, or None where it needs a library of engines that is not installed."""
    try:
        return load(*args)
    except ModuleNotFoundError as error:
        if error.name not in ENGINES_STAND_ON:
            raise
        return None


DIRECTIVES = {
    path: thing
    for page in sorted((DOCS / "reference").glob("*.md"))
    for path in DIRECTIVE.findall(page.read_text(encoding="utf-8"))
    if (thing := where_installed(loaded, path)) is not None
}


def public(module):
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    members = [where_installed(getattr, module, name) for name in names]
    return [m for m in members if inspect.isclass(m) or inspect.isfunction(m)]


def documented():
    """Every class and function on the pages: those that are named, and those of a module that is."""
    found = []
    for thing in DIRECTIVES.values():
        found += (
            [m for m in public(thing) if m.__module__ == thing.__name__]
            if inspect.ismodule(thing)
            else [thing]
        )
    return found


def is_documented(thing):
    """Whether a page has it; of what has more names in the face, the class of ours."""
    bases = thing.__mro__ if inspect.isclass(thing) else [thing]
    return any(each.__name__ == thing.__name__ and each in documented() for each in bases)


def members(thing):
    """What a page shows of it, by name: its own, and that of a class of ours which no page describes."""
    found = {}
    bases = thing.__mro__ if inspect.isclass(thing) else ()
    for base in reversed(bases):
        is_ours = base.__module__.startswith(("rlinf.", "rlinf_scheduler."))
        # The page of `Worker` shows what it inherits, too.
        of_worker = rlinf_scheduler.Worker in bases[1:] and issubclass(rlinf_scheduler.Worker, base)
        if base is thing or (is_ours and base not in documented() and not of_worker):
            found |= {name: getattr(thing, name) for name in vars(base)}
    return found or vars(thing)


@pytest.mark.parametrize(
    "module",
    [rlinf.scheduler, rlinf_scheduler.placement, engines, errors, events, rlinf.testing],
    ids=lambda module: module.__name__,
)
def test_every_public_name_is_in_the_reference(module):
    own = [m for m in public(module) if m.__module__.startswith(("rlinf.", "rlinf_scheduler."))]
    assert own
    assert [m.__qualname__ for m in own if not is_documented(m)] == []


def test_no_name_is_described_twice():
    # What happens is an event, and may be an error for whoever is in its way: these two are called the same.
    events_too = {name for name in vars(events) if hasattr(errors, name)}
    names = [
        thing.__qualname__
        for thing in documented()
        if thing.__module__ != events.__name__ or thing.__qualname__ not in events_too
    ]
    assert sorted(set(names)) == sorted(names)


def test_what_is_described_has_words_of_its_own():
    described = []
    for thing in documented():
        described += [thing, *(m for name, m in members(thing).items() if not name.startswith("_"))]
    wanted = [m for m in described if inspect.isclass(m) or inspect.isfunction(m) or isinstance(m, property)]
    assert len(wanted) > 400
    assert [getattr(m, "__qualname__", m) for m in wanted if not inspect.getdoc(m)] == []
