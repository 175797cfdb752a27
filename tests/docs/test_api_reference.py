"""The API reference has every public name, names nothing else, and its pages are all on the site."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
import yaml

import rlinf.scheduler
import rlinf.scheduler.placement
import rlinf.testing
from rlinf.scheduler import errors, events

DOCS = Path(__file__).parents[2] / "docs"
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


SITE = yaml.safe_load((DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"))


def loaded(path):
    """What a directive names: a module, or something in one."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


DIRECTIVES = {
    path: loaded(path)
    for page in sorted((DOCS / "reference").glob("*.md"))
    for path in DIRECTIVE.findall(page.read_text(encoding="utf-8"))
}


def public(module):
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    members = [getattr(module, name) for name in names]
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


@pytest.mark.parametrize(
    "module",
    [rlinf.scheduler, rlinf.scheduler.placement, errors, events, rlinf.testing],
    ids=lambda module: module.__name__,
)
def test_every_public_name_is_in_the_reference(module):
    own = [m for m in public(module) if m.__module__.startswith("rlinf.")]
    assert own
    assert [m.__qualname__ for m in own if m not in documented()] == []


def test_no_name_is_described_twice():
    names = [thing.__qualname__ for thing in documented()]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("thing", documented(), ids=lambda thing: thing.__qualname__)
def test_what_is_described_has_words_of_its_own(thing):
    described = [thing, *(m for name, m in vars(thing).items() if not name.startswith("_"))]
    wanted = [m for m in described if inspect.isclass(m) or inspect.isfunction(m) or isinstance(m, property)]
    assert [getattr(m, "__qualname__", m) for m in wanted if not inspect.getdoc(m)] == []


def nav_pages(entries):
    for entry in entries:
        target = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from nav_pages(target) if isinstance(target, list) else [target]


def test_the_site_lists_every_page_once():
    pages = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    assert sorted(nav_pages(SITE["nav"])) == sorted(pages)


def slug(heading):
    """The anchor of a heading, as Markdown's table of contents (and GitHub) make it."""
    text = re.sub(r"[^\w\s-]", "", heading.strip().lower())
    return re.sub(r"[\s]", "-", text)


@pytest.mark.parametrize(
    "page",
    [DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))],
    ids=lambda page: str(page.relative_to(DOCS.parent)),
)
def test_every_link_leads_somewhere(page):
    for target, anchor in re.findall(
        r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8")
    ):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{page}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, f"{page}: {target}#{anchor}"
