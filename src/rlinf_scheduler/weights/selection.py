"""Which tensors of a reader are fetched, and from which published ones each of them comes. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase, translate
from typing import TypeAlias, TypedDict

from rlinf_scheduler.errors import WeightsError
from rlinf_scheduler.weights.plan import Rows
from rlinf_scheduler.wording import did_you_mean

Keys: TypeAlias = "str | Iterable[str] | None"
Rename: TypeAlias = "Mapping[str, str] | Callable[[str], str] | None"
Fuse: TypeAlias = "Mapping[str, str | Rows | Sequence[str | Rows]] | None"
Origins: TypeAlias = Mapping[str, tuple[Rows, ...]]


class FetchOptions(TypedDict, total=False):
    """What `Worker.fetch_weights` takes by name of which tensors are fetched; each may be left out."""

    keys: Keys
    rename: Rename
    fuse: Fuse
    strict: bool


class Selection:
    """The tensors of a reader that are fetched.

    Args:
        name: of the weights, for messages.
        tensors: the keys of all of its tensors.
        keys: which of them: a key, or a pattern in which `*` stands for any text ("model.layers.3.*"), or several;
            None: all.
        rename: as which key each is published.
        fuse: of which published tensors one consists.
        there: whose tensors these are, for messages.

    Attributes:
        patterns: what `keys` said; None: all.
        keys: those that are fetched.
        origins: from where each comes, if not from the tensor of its own name.

    Raises:
        WeightsError: nothing there has one of the keys.
    """

    def __init__(
        self,
        name: str,
        tensors: Collection[str],
        keys: Keys = None,
        rename: Rename = None,
        fuse: Fuse = None,
        *,
        there: str = "the destination",
    ) -> None:
        self.patterns = None if keys is None else frozenset([keys] if isinstance(keys, str) else keys)
        wild = [each for each in self.patterns or () if set(each) & set("*?[")]
        self._wild = re.compile("|".join(map(translate, wild)) or "(?!)")
        self.keys = [key for key in tensors if self.has(key)]
        found = set(self.keys)
        for pattern in sorted(self.patterns or ()):
            if pattern not in found and not any(fnmatchcase(key, pattern) for key in self.keys):
                hint = did_you_mean(pattern, tensors) or f"its {len(tensors)} begin with {[*tensors][:3]}"
                raise WeightsError(name, f"no key of {there} is {pattern!r}, of keys=; {hint}")
        whence = {key: _origin(key, rename, fuse or {}) for key in self.keys}
        self.origins: Origins = {key: rows for key, rows in whence.items() if rows != (Rows(key),)}

    def has(self, key: str) -> bool:
        """Whether a key is one of those that are fetched."""
        return self.patterns is None or key in self.patterns or self._wild.match(key) is not None


def _origin(
    key: str, rename: Rename, fuse: Mapping[str, str | Rows | Sequence[str | Rows]]
) -> tuple[Rows, ...]:
    entry = _entry_of(key, fuse)
    if entry is None:
        return (Rows(_renamed(key, rename)),)
    made_of = fuse[entry]
    rows = [made_of] if isinstance(made_of, str | Rows) else made_of
    return tuple(
        each._replace(key=_renamed(_replaced(key, entry, each.key), rename))
        for each in (Rows(each) if isinstance(each, str) else each for each in rows)
    )


def _renamed(key: str, rename: Rename) -> str:
    if rename is None or callable(rename):
        return key if rename is None else rename(key)
    entry = _entry_of(key, rename)
    return key if entry is None else _replaced(key, entry, rename[entry])


def _entry_of(key: str, entries: Collection[str]) -> str | None:
    """Return the entry that is the key, or else the first that stands in it, as whole names between dots."""
    return key if key in entries else next((each for each in entries if f".{each}." in f".{key}."), None)


def _replaced(key: str, entry: str, by: str) -> str:
    """Replace whole names between dots.

    >>> _replaced("layers.0.qkv_proj.weight", "qkv_proj", "q_proj")
    'layers.0.q_proj.weight'
    """
    return f".{key}.".replace(f".{entry}.", f".{by}.", 1)[1:-1]
