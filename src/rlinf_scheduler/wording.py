"""Numbers, names and tables in texts for people: errors, warnings, the command line."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise

_SHOWN_RANGES = 6
_SHOWN_NAMES = 12


def nearest_name(name: str, known: Iterable[str]) -> str:
    """The known name that is spelt most like `name`, capitals aside; "" where none is near.

    >>> nearest_name("nodegroup", ["node_group", "placement"]), nearest_name("ROBOT", ["Robot"])
    ('node_group', 'Robot')
    """
    by_folded = {each.casefold(): each for each in known}
    # Of a very long name only the start is compared: the comparison is quadratic.
    found = difflib.get_close_matches(name[:80].casefold(), list(by_folded), n=1, cutoff=0.6)
    return by_folded[found[0]] if found else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The hint of an error about a name that is not there; "" where no known name is near.

    >>> did_you_mean("rolout", ["actor", "rollout"])
    "did you mean 'rollout'?"
    """
    near = nearest_name(name, known)
    return f"did you mean '{near}'?" if near else ""


def no_attribute(owner: str, name: str, known: Iterable[str]) -> str:
    """What is said of an attribute that is not there.

    >>> no_attribute("Policy", "hidden_sise", ["hidden_size"])
    "Policy has no attribute 'hidden_sise'; did you mean 'hidden_size'?"
    """
    hint = did_you_mean(name, known)
    return f"{owner} has no attribute '{name}'" + (f"; {hint}" if hint else "")


def natural_order(name: str) -> list[tuple[bool, int, str]]:
    """The key by which names are sorted as people count.

    >>> sorted(["actor:10", "actor:9", "actor", "1"], key=natural_order)
    ['1', 'actor', 'actor:9', 'actor:10']
    """
    parts = re.split(r"([0-9]+)", name)
    return [(False, int(part), "") if part.isdecimal() else (True, 0, part) for part in parts if part]


def list_names(names: Iterable[str]) -> str:
    """Names for an error text: quoted, and only the first of very many.

    >>> list_names(["actor", "rollout"])
    "'actor', 'rollout'"
    """
    every = list(names)
    shown = ", ".join(f"'{name}'" for name in every[:_SHOWN_NAMES])
    rest = len(every) - _SHOWN_NAMES
    return f"{shown} and {rest} more" if rest > 0 else shown


def text_table(lines: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    r"""The lines of a table, every column as wide as its widest cell and two blanks from the next.

    Args:
        lines: the cells of every line, as many in each; the headings are one of them.
        right: the columns whose cells stand at their right edge, such as numbers.

    >>> print(*text_table([("rank", "node"), ("0-15", "1"), ("16", "2")], right={0}), sep="\n")
    rank  node
    0-15  1
      16  2
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(line, widths, strict=True)
        yield "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(cells)
        ).rstrip()


def rank_range(first: int, last: int) -> str:
    """Two ranks and what lies between them: "3", "0-7"."""
    return str(first) if first == last else f"{first}-{last}"


def rank_ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers as first and last of ascending neighbours.

    >>> rank_ranges((0, 1, 2, 5))
    [(0, 2), (5, 5)]
    """
    if not numbers:
        return []
    breaks = [index for index, (a, b) in enumerate(pairwise(numbers), start=1) if b != a + 1]
    starts, ends = [0, *breaks], [*breaks, len(numbers)]
    return [(numbers[a], numbers[b - 1]) for a, b in zip(starts, ends, strict=True)]


def ranges_text(numbers: Sequence[int]) -> str:
    """Ascending numbers, neighbours joined: (0, 1, 2, 5) is "0-2,5"."""
    return ",".join(rank_range(first, last) for first, last in rank_ranges(numbers))


def device_list(names: Sequence[str]) -> str:
    """Devices as a visibility variable names them, neighbours joined where they are numbers.

    >>> device_list(["0", "1", "2", "10"]), device_list(["GPU-8a7f", "GPU-b0c1"])
    ('0-2,10', 'GPU-8a7f,GPU-b0c1')
    """
    numbers = sorted(int(name) for name in names if name.isdecimal())
    return ranges_text(numbers) if len(numbers) == len(names) else ",".join(names)


def node_list(node_ranks: Iterable[int], *, as_given: bool = False) -> str:
    """Nodes in a sentence, the first of very many; in ascending order, or in the order given.

    >>> node_list([2, 0, 1, 5]), node_list([3]), node_list(range(0, 40, 2))
    ('nodes 0-2, 5', 'node 3', 'nodes 0, 2, 4, 6, 8, 10 and 14 more')
    """
    ordered = list(node_ranks) if as_given else sorted(node_ranks)
    ranges = rank_ranges(ordered)
    text = ", ".join(rank_range(first, last) for first, last in ranges[:_SHOWN_RANGES])
    rest = sum(last - first + 1 for first, last in ranges[_SHOWN_RANGES:])
    return f"node{'s' if len(ordered) > 1 else ''} {text}" + (f" and {rest} more" if rest else "")


def name_list(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> name_list(["actor", "critic", "env"])
    'actor, critic and env'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def plain_text(value: object) -> str:
    r"""A value as a string of no other class than `str` that can be encoded as UTF-8, for messages and files.

    >>> plain_text("generate"), plain_text("\ud800"), plain_text(7)
    ('generate', '\\ud800', '7')
    """
    text = str.__str__(value) if isinstance(value, str) else str(value)
    return text.encode("utf-8", "backslashreplace").decode()


def printable(text: str) -> str:
    r"""The text without what would break a line or steer a terminal: a name may hold anything.

    >>> printable("actor\n")
    'actor\ufffd'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


_SIZE_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def size_text(size_bytes: int) -> str:
    """A size for people.

    >>> size_text(1), size_text(1536), size_text(1023 << 10), size_text(3 << 30)
    ('1 byte', '1.5 KiB', '1023 KiB', '3 GiB')
    """
    amount, unit = float(size_bytes), 0
    while amount >= 1024 and unit < len(_SIZE_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    number = f"{amount:.0f}" if amount >= 100 else f"{amount:.3g}"
    return "1 byte" if size_bytes == 1 else f"{number} {_SIZE_UNITS[unit]}"


def counted(number: int, noun: str, plural: str = "s") -> str:
    """A number with its noun: "1 node", "2 nodes"."""
    return f"{number} {noun}{'' if number == 1 else plural}"


def counted_about(number: float, noun: str) -> str:
    """A measured number with its noun.

    >>> counted_about(1.0, "put"), counted_about(0.25, "put"), counted_about(1234.5, "get")
    ('1 put', '0.25 puts', '1,234 gets')
    """
    text = f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
    return f"{text} {noun}{'' if text == '1' else 's'}"


def number_text(number: float) -> str:
    """A number that was given, such as a weight: a large one is not rounded.

    >>> number_text(1234567), number_text(0.1 + 0.2), number_text(2.0)
    ('1234567', '0.3', '2')
    """
    return f"{number:.0f}" if 1e5 <= abs(number) < 1e15 else f"{number:g}"


def seconds_text(seconds: float) -> str:
    """A time that was given, for people: short ones are not rounded to none.

    >>> seconds_text(120), seconds_text(0.25), seconds_text(0), seconds_text(86400)
    ('120 s', '0.25 s', '0 s', '86400 s')
    """
    return f"{seconds:.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def clock_text(at: float) -> str:
    """A moment, in seconds since 1970, as the clock on the wall shows it here; with the day if that is not today.

    >>> len(clock_text(time.time())), len(clock_text(0.0))
    (8, 19)
    """
    then, now = time.localtime(at), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M:%S", then)
