"""The pages as a site: each is on it, every link leads somewhere, and what leads out leads to the repository."""

import importlib.util
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import yaml

DOCS = Path(__file__).parents[2] / "docs"
SITE = yaml.safe_load((DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"))


def nav_pages(entries):
    for entry in entries:
        target = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from nav_pages(target) if isinstance(target, list) else [target]


def test_the_site_lists_every_page_once():
    pages = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    assert sorted(nav_pages(SITE["nav"])) == sorted(pages)


def test_first_page_leads_to_every_how_to():
    first = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = [str(path.relative_to(DOCS)) for path in (DOCS / "how-to").glob("*.md")]
    assert [page for page in pages if f"({page})" not in first] == []


def slug(heading):
    """The anchor of a heading, as Markdown's table of contents (and GitHub) make it."""
    text = re.sub(r"[^\w\s-]", "", heading.strip().lower())
    return re.sub(r"[\s]", "-", text)


def leads_somewhere(page, target, anchor):
    there = (page.parent / target).resolve() if target else page
    if not there.exists():
        return False
    headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
    return not anchor or anchor in {slug(heading) for heading in headings}


def test_every_link_leads_somewhere():
    pages = [DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
    links = [
        (page, target, anchor)
        for page in pages
        for target, anchor in re.findall(
            r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8")
        )
    ]
    assert [
        f"{page}: {target}#{anchor}"
        for page, target, anchor in links
        if not leads_somewhere(page, target, anchor)
    ] == []


def test_links_out_of_the_pages_lead_to_the_repository():
    spec = importlib.util.spec_from_file_location("outside_links", DOCS / "site" / "outside_links.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    page = SimpleNamespace(file=SimpleNamespace(src_uri="reference/plan-json.md"))
    config = SimpleNamespace(repo_url="https://example.org/r")
    text = "[a](../../src/a.json) [b](../glossary.md#b) [c](https://c.org) [d](#d) ![e](../parts.svg)"
    written = hook.on_page_markdown(text, page, config, None)
    assert written == text.replace("../../src/a.json", "https://example.org/r/blob/main/src/a.json")


def test_site_and_package_name_the_same_repository():
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert SITE["repo_url"] == project["urls"]["Source"]
