"""The text of a placement, `resources[:processes]` in segments separated by commas, as data and back.

    placement := segment ("," segment)*
    segment   := (range | "all") [":" range]
    range     := number ["-" number]

Blanks may stand around every part. An error points at the spot with a caret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rlinf_scheduler.errors import PlacementError, raise_config_errors
from rlinf_scheduler.planning.caret import Span, excerpt, printable

# A rank beyond this is a slip of the pen on any cluster; it keeps `0:0-999999999` from filling the memory.
MAX_RANK = 2**20 - 1

# More mistakes of one placement are not reported: a text of commas only has one for every comma.
_MOST_ERRORS = 8

_SEGMENT = re.compile(
    r"(?:\s*(?P<all>all)\s*|\s*(?P<r_first>\d{1,9})\s*(?:-\s*(?P<r_last>\d{1,9})\s*)?)"
    r"(?::\s*(?P<p_first>\d{1,9})\s*(?:-\s*(?P<p_last>\d{1,9})\s*)?)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class RankRange:
    """The ranks `first` to `last`, both included; `span` is where they stand in the text."""

    first: int
    last: int
    span: Span = field(default=(0, 0), compare=False, repr=False)

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class Segment:
    """One `resources[:processes]` part.

    Attributes:
        resources: the resource ranks; None stands for `all`.
        processes: the process ranks; None where the text leaves them to the scheduler.
        span: where the segment stands in the text, start and end (exclusive), in characters.
    """

    resources: RankRange | None
    processes: RankRange | None = None
    span: Span = field(default=(0, 0), compare=False, repr=False)

    def __str__(self) -> str:
        resources = "all" if self.resources is None else str(self.resources)
        return resources if self.processes is None else f"{resources}:{self.processes}"


def parse_segments(text: str) -> tuple[Segment, ...]:
    """The segments of a placement, in the order written.

    Raises:
        PlacementError: the text is no placement; the error points at the spot.
        PlacementErrors: several segments are none.

    >>> [str(segment) for segment in parse_segments("0-1:0-3, 3-5")]
    ['0-1:0-3', '3-5']
    """
    segments: list[Segment] = []
    errors: list[PlacementError] = []
    for start, end in _between_commas(text):
        try:
            segments.append(_segment(text, start, end))
        except PlacementError as error:
            errors.append(error)
            if len(errors) == _MOST_ERRORS:
                break
    raise_config_errors(errors)
    return tuple(segments)


def format_segments(segments: Iterable[Segment]) -> str:
    """The text of segments; `parse_segments` of it gives equal segments.

    >>> format_segments([Segment(RankRange(0, 1), RankRange(0, 3)), Segment(None)])
    '0-1:0-3,all'
    """
    return ",".join(map(str, segments))


def segments_of(given: Sequence[range]) -> list[Segment]:
    """Segments that give each process, in order, what is listed; without ranks where each has one resource.

    >>> format_segments(segments_of([range(0, 2), range(2, 4), range(6, 7)]))
    '0-3:0-1,6'
    """
    segments: list[Segment] = []
    rank = 0
    while rank < len(given):
        last = _last_alike(given, rank)
        own = RankRange(given[rank][0], given[last][-1])
        count = last - rank + 1
        processes = None if len(own) == count else RankRange(rank, last)
        segments.append(Segment(own, processes))
        rank = last + 1
    return segments


def parse_ranks(text: str) -> tuple[int, ...]:
    """The ranks of a list such as `0-2,5`, in the order written.

    Raises:
        PlacementError: the text is no list of ranks, or names a rank twice.

    >>> parse_ranks("4, 0-2")
    (4, 0, 1, 2)
    """
    ranks: dict[int, None] = {}
    for segment in parse_segments(text):
        if segment.resources is None and segment.processes is None:
            raise error_at(text, segment.span, "'all' stands alone: there is nothing to add to it", "all")
        if segment.resources is None or segment.processes is not None:
            raise error_at(text, segment.span, "a list of ranks holds numbers and ranges only, such as 0-2,5")
        chosen = range(segment.resources.first, segment.resources.last + 1)
        twice = next((rank for rank in chosen if rank in ranks), None)
        if twice is not None:
            raise error_at(text, segment.span, f"rank {twice} stands here twice")
        ranks.update(dict.fromkeys(chosen))
    return tuple(ranks)


def error_at(text: str, span: Span, problem: str, hint: str = "") -> PlacementError:
    """A mistake at a spot of a placement's text; of a long text the error shows the part around the spot."""
    shown, spot = excerpt(text, span)
    return PlacementError(problem, text=shown, span=spot, hint=hint)


def _between_commas(text: str) -> Iterator[Span]:
    start = 0
    for part in text.split(","):
        yield start, start + len(part)
        start += len(part) + 1


def _segment(text: str, start: int, end: int) -> Segment:
    match = _SEGMENT.fullmatch(text, start, end)
    if match is None:
        raise _diagnose_segment(text, start, end)
    resources = None if match["all"] else _range(text, match, "r")
    processes = None if match["p_first"] is None else _range(text, match, "p")
    return Segment(resources, processes, _trimmed(text, start, end))


def _range(text: str, match: re.Match[str], side: str) -> RankRange:
    first_text, last_text = match[f"{side}_first"], match[f"{side}_last"]
    first = int(first_text)
    span_end = match.end(f"{side}_first" if last_text is None else f"{side}_last")
    span = (match.start(f"{side}_first"), span_end)
    last = first if last_text is None else int(last_text)
    if last < first:
        raise error_at(text, span, f"the range {first}-{last} runs backwards", f"{last}-{first}")
    if last > MAX_RANK:
        raise error_at(text, span, f"rank {last} is beyond the highest that can be, {MAX_RANK}")
    return RankRange(first, last, span)


def _diagnose_segment(text: str, start: int, end: int) -> PlacementError:
    """Find out what is wrong with a segment that does not match the grammar."""
    span = _trimmed(text, start, end)
    if span[0] == span[1]:
        empty = not text.strip()
        return error_at(text, span, "the placement is empty" if empty else "a segment is empty")
    sides = text[start:end].split(":")
    if len(sides) > 2:
        return error_at(text, span, "a segment has one ':' at most, between resources and processes")
    middle = start + len(sides[0])
    if len(sides) == 2:
        if not sides[0].strip():
            return error_at(text, (middle, middle + 1), "no resources stand before the ':'")
        if not sides[1].strip():
            return error_at(text, (middle, middle + 1), "no processes stand after the ':'")
        if sides[1].strip() == "all":
            place = _trimmed(text, middle + 1, end)
            return error_at(text, place, "'all' may stand for the resources, not for the processes")
        if _SEGMENT.fullmatch(text, start, middle):
            return _diagnose_range(text, middle + 1, end)
    return _diagnose_range(text, start, middle)


def _diagnose_range(text: str, start: int, end: int) -> PlacementError:
    span = _trimmed(text, start, end)
    written = text[slice(*span)]
    ends = [part.strip() for part in written.split("-")]
    hint = ""
    if written.lower() == "all":
        hint = "all"
    elif match := re.fullmatch(r"(\d+)\s*(?:\.\.+|:|~|to|–|—)\s*(\d+)", written, re.ASCII):
        hint = f"{match[1]}-{match[2]}"
    if all(re.fullmatch(r"\d+", part, re.ASCII) for part in ends) and len(ends) <= 2:
        return error_at(text, span, f"no rank has more than nine digits; the highest is {MAX_RANK}")
    shown = printable(written[:40]) + ("..." if len(written) > 40 else "")
    problem = (
        f"'{shown}' is neither a rank nor a range of ranks; ranks are whole numbers from 0, without a sign"
    )
    return error_at(text, span, problem, hint)


def _trimmed(text: str, start: int, end: int) -> Span:
    """The span without the blanks around it; an empty one where there is nothing else."""
    written = text[start:end]
    left = start + len(written) - len(written.lstrip())
    return (left, left + len(written.strip())) if written.strip() else (start, start)


def _last_alike(given: Sequence[range], first: int) -> int:
    """The last process of the segment that begins with `first`."""
    width, sharing = len(given[first]), _num_sharing(given, first)
    last = first + sharing - 1
    while (
        last + 1 < len(given)
        and given[last + 1] == range(given[last].stop, given[last].stop + width)
        and _num_sharing(given, last + 1) == sharing
    ):
        last += sharing
    return last


def _num_sharing(given: Sequence[range], first: int) -> int:
    """How many consecutive processes have the same as `first`."""
    last = first
    while last + 1 < len(given) and given[last + 1] == given[first]:
        last += 1
    return last - first + 1
