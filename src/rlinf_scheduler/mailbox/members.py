"""Who takes part in a broadcast: groups and ranks, as users write them, to names."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rlinf_scheduler.addresses import Rank, WorkerAddress
from rlinf_scheduler.errors import CommError

# One rank, or several; one of a worker below a rank is "3/0", or in a list of several [3, 0] too.
Ranks: TypeAlias = Rank | Sequence[Rank]
Groups: TypeAlias = Sequence[tuple[str, Ranks]]


@dataclass(frozen=True, slots=True)
class Members:
    """The members of a broadcast.

    Attributes:
        source: the name of the process that has the object, e.g. "actor:0".
        targets: the names of the others, by group and rank, however the caller ordered them.
    """

    source: str
    targets: tuple[str, ...]

    @property
    def topic(self) -> str:
        """Return a topic that names these members and this source, and no others."""
        text = "\n".join((self.source, *self.targets))
        return f"broadcast/{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"


def parse_members(groups: Groups, src: tuple[str, Rank] | None, caller: str) -> Members:
    """Return the members of a broadcast that `caller` calls.

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
    names = list(map(str, members))
    if caller not in names:
        raise CommError(f"'{caller}' is none of the members of this broadcast: {_listed(members)}")
    return Members(str(source), tuple(name for name in names if name != str(source)))


def _entries(groups: Any) -> Sequence[Any]:
    if isinstance(groups, (str, bytes)) or not isinstance(groups, Sequence):
        raise CommError(f"the groups of a broadcast are a list of (group name, ranks), not {groups!r}")
    return groups


def _members_of(group: Any) -> list[WorkerAddress]:
    name, ranks = _pair(group, "a group of a broadcast is (group name, rank or ranks)")
    several = ranks if isinstance(ranks, Sequence) and not isinstance(ranks, (str, bytes)) else [ranks]
    return [_member(name, rank) for rank in several]


def _source(src: Any) -> WorkerAddress:
    return _member(*_pair(src, "the source of a broadcast is (group name, rank)"))


def _pair(pair: Any, form: str) -> tuple[str, Any]:
    if isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], str):
        return pair[0], pair[1]
    raise CommError(f"{form}, not {pair!r}")


def _member(group: str, rank: Any) -> WorkerAddress:
    try:
        return WorkerAddress(group, rank)
    except ValueError:
        problem = f"a rank of '{group}' in a broadcast is a whole number from 0, not {rank!r}"
        raise CommError(f"{problem}; of a worker below a rank it is '3/0'") from None


def _listed(members: Sequence[WorkerAddress]) -> str:
    shown = [f"'{member}'" for member in members[:_MAX_LISTED]]
    more = len(members) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


_MAX_LISTED = 16
