"""A letter and a colour for each component: the same in the terminal's map and on the page."""

from __future__ import annotations

import colorsys
import string
from collections.abc import Iterable
from dataclasses import dataclass

# Paul Tol's bright and vibrant schemes: told apart by most eyes, on light and on dark.
_TOL = ("4477aa", "ee6677", "228833", "ccbb44", "66ccee", "aa3377", "ee7733", "009988", "bbbbbb", "cc3311")
_LETTERS = string.ascii_uppercase + string.ascii_lowercase
_GOLDEN_ANGLE = 0.381966


@dataclass(frozen=True, slots=True)
class Appearance:
    """How a component looks.

    Attributes:
        letter: its letter; of very many components a number.
        colour: "#rrggbb".
        ink: the colour of text on it, black or white.
    """

    letter: str
    colour: str
    ink: str


def looks(names: Iterable[str]) -> dict[str, Appearance]:
    """The look of every component, by name."""
    return {name: _look(index) for index, name in enumerate(names)}


def _look(index: int) -> Appearance:
    letter = _LETTERS[index] if index < len(_LETTERS) else f"({index})"
    if index < len(_TOL):
        channels = [int(_TOL[index][at : at + 2], 16) for at in (0, 2, 4)]
    else:
        lightness = (0.45, 0.6, 0.75)[index % 3]
        channels = [
            round(255 * part) for part in colorsys.hls_to_rgb(index * _GOLDEN_ANGLE % 1, lightness, 0.6)
        ]
    red, green, blue = channels
    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 140
    return Appearance(letter, f"#{red:02x}{green:02x}{blue:02x}", "#ffffff" if dark else "#000000")
