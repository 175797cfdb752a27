"""Text as a YAML scalar that every YAML reader reads back as the same text."""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[A-Za-z/][\w./-]*", re.ASCII)
# Some of them are numbers, some booleans, to one version of YAML or another.
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def quoted(text: str) -> str:
    r"""The text as it is where it can only be text, else in double quotes.

    >>> quoted("NVIDIA"), quoted("4"), quoted("no"), quoted('a "b"\n')
    ('NVIDIA', '"4"', '"no"', '"a \\"b\\"\\x0a"')
    """
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
