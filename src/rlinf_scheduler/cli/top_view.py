"""What a job does, as a terminal shows it: it fits the terminal, and what waits or is busiest comes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlinf_scheduler.observe.process_stats import IDLE_RANK, LOST, RUNNING, STARTING, UNRESPONSIVE, WAITING
from rlinf_scheduler.observe.status import (
    CallStatus,
    ChannelStatus,
    EventRecord,
    GroupStatus,
    JobStatus,
    RankStatus,
    WeightsStatus,
)
from rlinf_scheduler.wording import clock_text, counted, printable, ranges_text, size_text

# -- which ranks are shown ---------------------------------------------------------------------------


# What a user is to see first.
URGENCY = (LOST, UNRESPONSIVE, WAITING, STARTING, RUNNING, IDLE_RANK)


@dataclass(frozen=True, slots=True)
class ShownGroup:
    """A group, and those of its ranks that have a line of their own."""

    group: GroupStatus
    ranks: tuple[RankStatus, ...]

    @property
    def has_title(self) -> bool:
        """Whether the group has a line for itself: one of a single rank is that rank's."""
        return len(self.group.ranks) > 1


@dataclass(frozen=True, slots=True)
class Choice:
    """The content of the screen.

    Attributes:
        groups: with at least a line each.
        left_out: how many ranks of these and of all other groups have no line, by their states.
        num_groups_left_out: how many groups have none.
    """

    groups: tuple[ShownGroup, ...]
    left_out: Counter[str]
    num_groups_left_out: int = 0

    @property
    def num_lines(self) -> int:
        """How many lines it takes."""
        return sum(shown.has_title + len(shown.ranks) for shown in self.groups)


def urgency(rank: RankStatus) -> tuple[int, float, float]:
    """Where a rank stands in line for a line: by its state, then by how long it is in it, then by what it computes."""
    since_s = rank.silent_s or rank.wait_since_s or rank.method_since_s
    return URGENCY.index(rank.state), -since_s, -rank.cpu_percent


def chosen(groups: Sequence[GroupStatus], num_lines: int) -> Choice:
    """Give so many lines to groups and ranks; one that says what is left out is not counted.

    Each group has a line, as long as there are lines, and the others go to the ranks that are most urgent; those that
    are away have a third of all lines before any group has.

    >>> ranks = tuple(RankStatus(f"env:{number}", number, state="idle") for number in range(9))
    >>> choice = chosen([GroupStatus("env", (*ranks, RankStatus("env:9", 9, state="lost")))], 3)
    >>> [rank.address for rank in choice.groups[0].ranks], choice.left_out["idle"]
    (['env:0', 'env:9'], 8)
    """
    first = sorted(groups, key=lambda group: min(map(urgency, group.ranks), default=(len(URGENCY), 0.0, 0.0)))
    away = sum(rank.state in (LOST, UNRESPONSIVE) for group in groups for rank in group.ranks)
    kept = {group.name for group in first[: max(1, num_lines - min(away, num_lines // 3))]}
    shown = [group for group in groups if group.name in kept]
    num_left = num_lines - len(shown)
    # A group of one rank has that rank in its line.
    candidates = sorted(
        (rank for group in shown if len(group.ranks) > 1 for rank in group.ranks), key=urgency
    )
    wanted = {rank.address for rank in candidates[: max(0, num_left)]}
    wanted.update(group.ranks[0].address for group in shown if len(group.ranks) == 1)
    return Choice(
        tuple(
            ShownGroup(group, tuple(rank for rank in group.ranks if rank.address in wanted))
            for group in shown
        ),
        Counter(rank.state for group in groups for rank in group.ranks if rank.address not in wanted),
        len(groups) - len(shown),
    )


# -- the frame ---------------------------------------------------------------------------------------


STYLES = {
    RUNNING: "green",
    WAITING: "yellow",
    IDLE_RANK: "dim",
    STARTING: "cyan",
    UNRESPONSIVE: "bold red",
    LOST: "bold red",
}
MARKS = {RUNNING: "●", WAITING: "◌", IDLE_RANK: "·", STARTING: "+", UNRESPONSIVE: "?", LOST: "✗"}
_LEVELS = {"info": "", "warning": "yellow", "error": "bold red"}
# The heads of columns, and what says how much is left out.
_HEAD_LINES, _LEFT_OUT_LINES = 1, 1
# What other sections have at least, as long as they have so much to show.
_MIN_CHANNELS, _MIN_WEIGHTS, _MIN_EVENTS = 3, 2, 3
_NARROW = 100


def job_view(status: JobStatus, width: int, height: int, note: str = "") -> RenderableType:
    """A frame of at most so many columns and lines."""
    sizes = _shares(status, height - 1 - bool(note))
    parts: list[RenderableType] = [_headline(status, width)]
    parts += _ranks(status.groups, sizes[0], width)
    parts += _channels(status.channels, sizes[1], width)
    parts += _weights(status.weights, sizes[2])
    parts += _events(status.events, sizes[3])
    if note:
        parts.append(Text(printable(note), style="bold red", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _shares(status: JobStatus, height: int) -> tuple[int, int, int, int]:
    """How many lines of content ranks, channels, weights and events have."""
    titles = sum(len(group.ranks) > 1 for group in status.groups)
    num_ranks = titles + sum(max(1, len(rank.calls)) for rank in status.ranks)
    wanted = (num_ranks, len(status.channels), len(status.weights), len(status.events))
    least = [min(n, m) for n, m in zip(wanted, (1, _MIN_CHANNELS, _MIN_WEIGHTS, _MIN_EVENTS), strict=True)]
    for index in (3, 2, 1):  # on a low terminal, sections have less, and then nothing
        while least[index] and _num_lines(least) > height:
            least[index] -= 1
    left = height - _num_lines(least)
    for index in (0, 1, 2, 3):
        more = max(0, min(left, wanted[index] - least[index])) if least[index] else 0
        least[index] += more
        left -= more
    return least[0], least[1], least[2], least[3]


def _num_lines(sizes: Sequence[int]) -> int:
    """How high sections are with so many lines of content."""
    return sum(number + _HEAD_LINES + _LEFT_OUT_LINES for number in sizes if number)


def _headline(status: JobStatus, width: int) -> Text:
    states = Counter(rank.state for rank in status.ranks)
    line = Text(no_wrap=True, overflow="ellipsis")
    interpreter, _, rest = printable(status.job).partition(" ")
    program = " ".join(filter(None, (interpreter.rpartition("/")[2], rest))) or "a job"
    line.append(program if len(program) <= width // 3 else f"{program[: width // 3]}…", style="bold")
    line.append(f" {status.driver_pid} ")
    line.append(clock_text(status.at_s), style="dim")
    if status.nodes:
        line.append(f"  {counted(len(status.nodes), 'node')}")
        ailing = [f"node {node.rank} is {node.state}" for node in status.nodes if node.state != "alive"]
        line.append("".join(f"  {each}" for each in ailing[:3]), style="bold red")
    for state in URGENCY:
        if states[state]:
            line.append(f"  {MARKS[state]} {states[state]} {state}", style=STYLES[state])
    return line


def _section(heads: Sequence[tuple[str, bool, int]]) -> Table:
    """A table; of each column the head, whether numbers stand in it, and its share of the room that is left."""
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="reverse")
    for head, is_number, ratio in heads:
        justify: Literal["left", "right"] = "right" if is_number else "left"
        table.add_column(head, justify=justify, no_wrap=True, overflow="ellipsis", ratio=ratio or None)
    return table


def _left_out(texts: Sequence[str]) -> list[RenderableType]:
    return (
        [Text(f"  and {', '.join(texts)}", style="dim", no_wrap=True, overflow="ellipsis")] if texts else []
    )


# -- ranks -------------------------------------------------------------------------------------------


def _ranks(groups: Sequence[GroupStatus], num_lines: int, width: int) -> list[RenderableType]:
    if not num_lines:
        return []
    choice = chosen(groups, num_lines)
    has_devices = any(rank.device_memory_bytes for group in groups for rank in group.ranks)
    heads = [("rank", False, 0), ("node", False, 0), ("state", False, 0), ("at", False, 1)]
    heads += [("CPU", True, 0), ("memory", True, 0)]
    heads += [("device", True, 0)] if has_devices else []
    table = _section(heads)
    spare = num_lines - choice.num_lines
    for shown in choice.groups:
        if shown.has_title:
            table.add_row(*_group_row(shown, width, has_devices=has_devices))
        for rank in shown.ranks:
            indent = "  " if shown.has_title else ""
            others = _other_calls(rank)
            rows, spare = others[:spare], max(0, spare - len(others))
            hidden = len(others) - len(rows)
            table.add_row(*_rank_row(rank, indent, hidden, has_devices=has_devices))
            for call in rows:
                table.add_row(*_call_row(call))
    texts = [f"{choice.left_out[state]} more {state}" for state in URGENCY if choice.left_out[state]]
    if choice.num_groups_left_out:
        texts.append(f"{counted(choice.num_groups_left_out, 'more group')}")
    return [table, *_left_out(texts)]


def _group_row(shown: ShownGroup, width: int, *, has_devices: bool) -> Iterator[RenderableType]:
    ranks = shown.group.ranks
    nodes = sorted({rank.node_rank for rank in ranks if rank.node_rank >= 0})
    yield Text(printable(shown.group.name), style="bold")
    yield ranges_text(nodes) if nodes else ""
    yield counted(sum(not rank.is_below for rank in ranks), "rank")
    yield _strip(ranks, width - 60)
    yield f"{sum(rank.cpu_percent for rank in ranks):.0f} %"
    yield size_text(sum(rank.rss_bytes for rank in ranks))
    if has_devices:
        yield _memory(sum(rank.device_memory_bytes or 0 for rank in ranks))


def _strip(ranks: Sequence[RankStatus], room: int) -> Text:
    """A mark for each rank, in order, or how many there are in each state."""
    text = Text(no_wrap=True, overflow="ellipsis")
    if len(ranks) <= room:
        for rank in ranks:
            text.append(MARKS[rank.state], style=STYLES[rank.state])
        return text
    states = Counter(rank.state for rank in ranks)
    for state in URGENCY:
        if states[state]:
            text.append(f"{states[state]}{MARKS[state]} ", style=STYLES[state])
    return text


def _other_calls(rank: RankStatus) -> list[CallStatus]:
    """Return the calls that run in a rank, without the one that its own row tells of."""
    others = list(rank.calls)
    told = next((call for call in others if (call.method, call.wait) == (rank.method, rank.wait)), None)
    if told is not None:
        others.remove(told)
    return others


def _call_row(call: CallStatus) -> Iterator[RenderableType]:
    state = WAITING if call.wait else RUNNING
    yield from ("", "", Text(state, style=STYLES[state]))
    yield Text(printable(_call_text(call)), no_wrap=True, overflow="ellipsis")


def _rank_row(rank: RankStatus, indent: str, hidden: int, *, has_devices: bool) -> Iterator[RenderableType]:
    yield Text(f"{indent}{printable(rank.address)}")
    devices = f":{ranges_text(rank.devices)}" if rank.devices else ""
    yield f"{rank.node_rank}{devices}" if rank.node_rank >= 0 else ""
    restarts = f" ↻{rank.restarts}" if rank.restarts else ""
    yield Text(f"{rank.state}{restarts}", style=STYLES[rank.state])
    more = f", {counted(hidden, 'more call')}" if hidden else ""
    yield Text(printable(_at(rank) + more), no_wrap=True, overflow="ellipsis")
    yield f"{rank.cpu_percent:.0f} %" if rank.state not in (LOST, UNRESPONSIVE) else ""
    yield _memory(rank.rss_bytes)
    if has_devices:
        yield _memory(rank.device_memory_bytes or 0)


def _at(rank: RankStatus) -> str:
    """What a rank is at, and for how long."""
    queued = f", {rank.calls_queued} queued" if rank.calls_queued else ""
    if rank.state in (LOST, UNRESPONSIVE):
        return f"{time_text(rank.silent_s)} {rank.detail}"
    if rank.wait or rank.method:
        told = CallStatus(rank.method, rank.method_since_s, "", rank.wait, rank.wait_since_s)
        return f"{_call_text(told)}{queued}"
    carries = f"{rate_text(rank.items_per_s)} items/s" if rank.items_per_s else ""
    return f"{carries}{queued}" if carries else queued[2:]


def _call_text(call: CallStatus) -> str:
    if not call.wait:
        return f"{time_text(call.since_s)} {call.method}()"
    inside = f", in {call.method}()" if call.method else ""
    return f"{time_text(call.wait_since_s)} {call.wait}{inside}"


# -- the others --------------------------------------------------------------------------------------


def _channels(channels: Sequence[ChannelStatus], num_lines: int, width: int) -> list[RenderableType]:
    if not num_lines:
        return []
    heads = [
        ("channel", False, 0),
        ("items", True, 0),
        ("held", True, 0),
        ("put/s", True, 0),
        ("get/s", True, 0),
    ]
    heads += [("bytes/s", True, 0), ("oldest", True, 0), ("leased", True, 0)] if width >= _NARROW else []
    table = _section([*heads, ("waits", False, 1)])
    for channel in sorted(channels, key=_business)[:num_lines]:
        numbers: list[RenderableType] = [
            Text(printable(channel.name)),
            f"{channel.depth:,}",
            size_text(channel.bytes),
            rate_text(channel.puts_per_s),
            rate_text(channel.gets_per_s),
        ]
        if width >= _NARROW:
            numbers.append(f"{size_text(round(channel.bytes_per_s))}")
            numbers.append("" if channel.oldest_age_s is None else time_text(channel.oldest_age_s))
            numbers.append(f"{channel.leased:,}" if channel.leased else "")
        table.add_row(*numbers, Text(_waiting_at(channel), no_wrap=True, overflow="ellipsis"))
    left = len(channels) - num_lines
    return [table, *_left_out([f"{left} more"] if left > 0 else [])]


def _business(channel: ChannelStatus) -> tuple[float, float, int]:
    """The longest wait first, then the highest rate, then the most items."""
    longest_s = max((each.since_s for each in channel.waiting), default=0.0)
    return -round(longest_s), -(channel.puts_per_s + channel.gets_per_s), -channel.depth


def _waiting_at(channel: ChannelStatus) -> str:
    if not channel.waiting:
        return ""
    first = max(channel.waiting, key=lambda each: each.since_s)
    more = f", {len(channel.waiting) - 1} more" if len(channel.waiting) > 1 else ""
    queue = "" if first.queue == "'default'" else f" at {first.queue}"
    return printable(f"{time_text(first.since_s)} {first.process}: {first.operation}{queue}{more}")


def _weights(weights: Sequence[WeightsStatus], num_lines: int) -> list[RenderableType]:
    if not num_lines:
        return []
    heads = [
        ("weights", False, 0),
        ("version", True, 0),
        ("size", True, 0),
        ("lag", True, 0),
        ("read by", False, 1),
    ]
    table = _section(heads)
    for each in sorted(weights, key=lambda one: -one.lag)[:num_lines]:
        version = "" if each.version < 0 else str(each.version)
        table.add_row(
            Text(printable(each.name)),
            version,
            _memory(each.bytes),
            str(each.lag) if each.readers else "",
            _readers(each),
        )
    left = len(weights) - num_lines
    return [table, *_left_out([f"{left} more"] if left > 0 else [])]


def _readers(weights: WeightsStatus) -> Text:
    behind = sorted(weights.readers, key=lambda name: weights.readers[name])
    who = f"{counted(len(behind), 'process', 'es')}" if behind else "nobody yet"
    last = f", {behind[0]} has version {weights.readers[behind[0]]}" if behind and weights.lag else ""
    return Text(
        printable(f"{who}{last}; from {weights.publisher or 'nobody'}"), no_wrap=True, overflow="ellipsis"
    )


def _events(events: Sequence[EventRecord], num_lines: int) -> list[RenderableType]:
    if not num_lines:
        return []
    table = _section([("at", False, 0), ("what", False, 1)])
    for event in events[-num_lines:]:
        text = Text(
            printable(event.text), style=_LEVELS.get(event.level, ""), no_wrap=True, overflow="ellipsis"
        )
        table.add_row(clock_text(event.at_s), text)
    return [table]


# -- words -------------------------------------------------------------------------------------------


def _memory(size_bytes: int) -> str:
    return size_text(size_bytes) if size_bytes else ""


def time_text(seconds: float) -> str:
    """How long something takes, in few letters.

    >>> time_text(0.03), time_text(41.6), time_text(600), time_text(7300), time_text(200_000)
    ('0 s', '42 s', '10 min', '2.0 h', '2.3 d')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86400 else f"{seconds / 86400:.1f} d"


def rate_text(per_s: float) -> str:
    """A rate in few letters.

    >>> rate_text(0.0), rate_text(0.25), rate_text(41.6), rate_text(12_345)
    ('0', '0.25', '42', '12.3k')
    """
    if per_s >= 10_000:
        return f"{per_s / 1000:.1f}k"
    return f"{per_s:.0f}" if per_s >= 10 or per_s == 0 else f"{per_s:.2g}"
