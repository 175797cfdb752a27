"""The glossary: one entry for each idea, in order, and every class that users meet is in it."""

import re
from pathlib import Path

import pytest

import rlinf.scheduler

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
SECTIONS = {section.split("\n")[0]: section for section in PAGE.split("\n## ")[1:]}
WORDS = re.findall(r"^\| \*\*(.+?)\*\* \|", PAGE, re.MULTILINE)


def used_in():
    """The library's sources, the pages and the examples, as one text."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name != "glossary.md"]
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    return "\n".join(path.read_text(encoding="utf-8").lower() for path in [*pages, *sources])


TEXT = used_in()


def test_no_word_has_two_entries():
    assert [word for word in WORDS if WORDS.count(word) > 1] == []


@pytest.mark.parametrize("title", ["What users meet", "Inside the library"])
def test_words_are_in_order(title):
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", SECTIONS[title], re.MULTILINE)
    assert words == sorted(words, key=str.lower)
    assert len(words) > 30


def test_every_word_is_used():
    # `world_size` and `HolderTable` are the words too, and so is what the end of a line divides.
    patterns = {word: re.sub(r"[ -]", r"[\\s_-]?", word.lower()) for word in WORDS}
    assert [word for word, pattern in patterns.items() if not re.search(pattern, TEXT)] == []


def test_every_public_class_is_explained():
    names = [name for name in rlinf.scheduler.__all__ if name != "errors"]
    assert [name for name in names if not re.search(rf"`{name}\b", SECTIONS["What users meet"])] == []
