"""Who takes part in a broadcast: groups and ranks, as users write them, to names."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, TypeAlias

from rlinf_scheduler.errors import CommError

Ranks: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
Groups: TypeAlias = Sequence[tuple[str, Ranks]]


@dataclass(frozen=True, slots=True)
class Members:
    """Who takes part.

    Attributes:
        source: the name of the process that has the object, e.g. "actor:0".
        targets: the names of the others, by group and rank, however the caller ordered them.
    """

    source: str
    targets: tuple[str, ...]

    @property
    def topic(self) -> str:
        """What names these members and this source, and no others."""
        text = "\n".join((self.source, *self.targets))
        return f"broadcast/{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"


def parse_members(groups: Groups, src: tuple[str, SupportsIndex] | None, caller: str) -> Members:
    """Who takes part in a broadcast that `caller` calls.

    >>> parse_members([("rollout", range(2)), ("actor", 0)], ("actor", 0), "rollout:1")
    Members(source='actor:0', targets=('rollout:0', 'rollout:1'))

    Args:
        groups: each a group's name with a rank or several.
        src: the group's name and the rank of the source; None for the first member that is named.
        caller: the name of the process that asks.

    Raises:
        CommError: a member is named twice, or none is; the source or the caller is none of them; or something is
            not of this form.
    """
    named = [member for group in _entries(groups) for member in _members_of(group)]
    if not named:
        raise CommError("a broadcast needs members: groups=[('actor', [0]), ('rollout', [0, 1])]")
    members = sorted(set(named))
    twice = sorted(member for member in members if named.count(member) > 1)
    if twice:
        raise CommError(f"a broadcast names {_listed(twice)} twice; each member is named once")
    source = named[0] if src is None else _source(src)
    if source not in members:
        raise CommError(
            f"the source of a broadcast, {_listed([source])}, is none of its members: {_listed(members)}"
        )
    names = [_name(*member) for member in members]
    if caller not in names:
        raise CommError(f"'{caller}' is none of the members of this broadcast: {_listed(members)}")
    return Members(_name(*source), tuple(name for name in names if name != _name(*source)))


def _entries(groups: Any) -> Sequence[Any]:
    if isinstance(groups, (str, bytes)) or not isinstance(groups, Sequence):
        raise CommError(f"the groups of a broadcast are a list of (group name, ranks), not {groups!r}")
    return groups


def _members_of(group: Any) -> list[tuple[str, int]]:
    name, ranks = _pair(group, "a group of a broadcast is (group name, rank or ranks)")
    if isinstance(ranks, (str, bytes)):
        raise CommError(f"the ranks of '{name}' in a broadcast are whole numbers, not {ranks!r}")
    several = ranks if isinstance(ranks, Sequence) else [ranks]
    return [(name, _rank(name, rank)) for rank in several]


def _source(src: Any) -> tuple[str, int]:
    name, rank = _pair(src, "the source of a broadcast is (group name, rank)")
    return name, _rank(name, rank)


def _pair(pair: Any, form: str) -> tuple[str, Any]:
    if isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], str):
        return pair[0], pair[1]
    raise CommError(f"{form}, not {pair!r}")


def _rank(name: str, rank: Any) -> int:
    try:
        number = -1 if isinstance(rank, bool) else operator.index(rank)
    except TypeError:
        number = -1
    if number < 0:
        raise CommError(f"a rank of '{name}' in a broadcast is a whole number from 0, not {rank!r}")
    return number


def _name(group: str, rank: int) -> str:
    return f"{group}:{rank}"


def _listed(members: Sequence[tuple[str, int]]) -> str:
    shown = [f"'{_name(*member)}'" for member in members[:_MAX_LISTED]]
    more = len(members) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


_MAX_LISTED = 16
