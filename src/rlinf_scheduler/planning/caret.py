"""Showing a spot of a text: the part around it, in characters that take one column each."""

from __future__ import annotations

Span = tuple[int, int]

_SHOWN_CHARACTERS = 96


def excerpt(text: str, span: Span) -> tuple[str, Span]:
    r"""The text as one printable line, of a long one the part around a spot; and where the spot is in it.

    >>> excerpt("0-1\t:0-3", (4, 5))
    ('0-1 :0-3', (4, 5))
    """
    if len(text) <= _SHOWN_CHARACTERS:
        return printable(text), span
    start, end = span
    left = max(0, start - _SHOWN_CHARACTERS // 3)
    right = min(len(text), left + _SHOWN_CHARACTERS)
    before, after = ("..." if left else ""), ("..." if right < len(text) else "")
    shift = len(before) - left
    # The text is cut first: replacing characters in millions of which a hundred are shown would take seconds.
    shown = before + printable(text[left:right]) + after
    return shown, (start + shift, max(start, min(end, right)) + shift)


def printable(text: str) -> str:
    """The text with a character that can be shown for every character that cannot."""
    return "".join(map(_printable_character, text))


def _printable_character(character: str) -> str:
    # One character replaces one, or the caret would stand beside its spot.
    if character.isprintable():
        return character
    return " " if character.isspace() else "\N{REPLACEMENT CHARACTER}"
