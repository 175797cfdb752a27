"""A plan as a map: nodes down, devices across, a letter for each component that uses a device."""

from __future__ import annotations

import colorsys
import string
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from rlinf_scheduler.planning import Plan, Sharing, Topology
from rlinf_scheduler.planning.declared_hardware import hardware_counts
from rlinf_scheduler.planning.neighbours import neighbours
from rlinf_scheduler.wording import counted, node_list, printable, rank_range, text_table

# Paul Tol's bright and vibrant schemes: told apart by most eyes, on light and on dark.
_TOL = ("4477aa", "ee6677", "228833", "ccbb44", "66ccee", "aa3377", "ee7733", "009988", "bbbbbb", "cc3311")
_LETTERS = string.ascii_uppercase + string.ascii_lowercase
_GOLDEN_ANGLE = 0.381966


@dataclass(frozen=True, slots=True)
class Appearance:
    """How a component looks.

    Attributes:
        letter: its letter; of very many components a number.
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


# -- the map -----------------------------------------------------------------------------------------


# Of a node with more devices than this, neighbours that are alike are drawn as one cell.
_MOST_CELLS = 32
_MOST_LETTERS = 8
_IDLE = "."
_HEADINGS = ("nodes", "group", "devices")

# The components that use a device.
Users = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Strip:
    """The devices of one kind on a node: "NVIDIA", "Robot", or "node" for the node itself."""

    kind: str
    devices: tuple[Users, ...]


@dataclass(frozen=True, slots=True)
class MapRow:
    """Neighbouring nodes that are used alike."""

    first_node: int
    last_node: int
    groups: tuple[str, ...]
    strips: tuple[Strip, ...]


# A piece of a line: its text, and the component that it stands for.
_Piece = tuple[str, str | None]


def map_rows(plan: Plan, sharing: Sharing) -> Iterator[MapRow]:
    """The rows of a plan's map, in node order."""
    rows = _node_rows(plan.topology, sharing)
    for alike in neighbours(
        rows, lambda row, next_: (row.groups, row.strips) == (next_.groups, next_.strips)
    ):
        yield replace(alike[0], last_node=alike[-1].last_node)


def render_map(plan: Plan, sharing: Sharing, *, colour: bool | None = None) -> str:
    """A plan's map and its legend.

    Args:
        colour: with the components' colours; None: only for a terminal. The letters say the same.
    """
    look = looks(plan.components)
    lines = [*_map_lines(list(map_rows(plan, sharing)), look), [], *_legend(plan, look)]
    if sys.stdout.isatty() if colour is None else colour:
        return _coloured(lines, look)
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def node_group_labels(topology: Topology) -> list[tuple[str, ...]]:
    """The declared groups of every node."""
    labels: list[list[str]] = [[] for _ in topology.nodes]
    for group in topology.node_groups:
        for rank in group.node_ranks:
            labels[rank].append(group.label)
    return [tuple(of_node) for of_node in labels]


def attached_hardware(topology: Topology) -> dict[int, list[tuple[str, int]]]:
    """The declared hardware of every node that has some: its kinds, and how many pieces of each."""
    attached: dict[int, list[tuple[str, int]]] = {}
    for (rank, kind), number in hardware_counts(topology).items():
        attached.setdefault(rank, []).append((kind, number))
    return attached


def _node_rows(topology: Topology, sharing: Sharing) -> Iterator[MapRow]:
    users, attached = sharing.users, attached_hardware(topology)
    for rank, (node, groups) in enumerate(zip(topology.nodes, node_group_labels(topology), strict=True)):
        kinds = [(node.accelerator_type, node.num_accelerators)] if node.num_accelerators else []
        kinds += attached.get(rank, [])
        strips = [
            Strip(kind, tuple(users.get((rank, kind, index), ()) for index in range(number)))
            for kind, number in kinds
        ]
        itself = users.get((rank, "", None), ())
        if itself or not strips:
            strips.append(Strip("node", (itself,)))
        yield MapRow(rank, rank, groups, tuple(strips))


def _map_lines(rows: list[MapRow], look: dict[str, Appearance]) -> Iterator[list[_Piece]]:
    heads = [head for row in rows for head in _heads(row)]
    cells = [list(_cells(strip, look)) for row in rows for strip in row.strips]
    cell_width = max(sum(len(text) for text, _ in cell) for line in cells for cell in line)
    headings, *beginnings = text_table([_HEADINGS, *heads])
    width = max(map(len, (headings, *beginnings)))
    yield [(headings, None)]
    for beginning, line in zip(beginnings, cells, strict=True):
        pieces: list[_Piece] = [(beginning.ljust(width + 2), None)]
        for cell in line:
            used = sum(len(text) for text, _ in cell)
            pieces += [*cell, (" " * (cell_width - used + 1), None)]
        yield pieces


def _heads(row: MapRow) -> Iterator[tuple[str, str, str]]:
    """What stands before the devices: of a node's second line on, only what they are."""
    first, *others = row.strips
    groups = printable(",".join(row.groups)) or "-"
    yield rank_range(row.first_node, row.last_node), groups, printable(first.kind)
    for strip in others:
        yield "", "", printable(strip.kind)


def _cells(strip: Strip, look: dict[str, Appearance]) -> Iterator[list[_Piece]]:
    if len(strip.devices) <= _MOST_CELLS:
        for users in strip.devices:
            yield _letters(users, look)
        return
    for users, alike in groupby(strip.devices):
        yield [*_letters(users, look), (f"*{sum(1 for _ in alike)}", None)]


def _letters(users: Users, look: dict[str, Appearance]) -> list[_Piece]:
    if not users:
        return [(_IDLE, None)]
    if len(users) <= _MOST_LETTERS:
        return [(look[name].letter, name) for name in users]
    return [*((look[name].letter, name) for name in users[: _MOST_LETTERS - 1]), ("+", None)]


def _legend(plan: Plan, look: dict[str, Appearance]) -> Iterator[list[_Piece]]:
    width = max((len(printable(name)) for name in plan.components), default=0)
    for name, component in plan.components.items():
        nodes = node_list({run.node_rank for run in component.runs})
        ranks = counted(component.world_size, "rank")
        yield [(look[name].letter, name), (f"  {printable(name).ljust(width)}  {ranks} on {nodes}", None)]
    yield [(f"{_IDLE}  idle", None)]


def _coloured(lines: list[list[_Piece]], look: dict[str, Appearance]) -> str:
    # Loaded for terminals only: it takes as long as everything else here.
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(file=sys.stdout, highlight=False, force_terminal=True, soft_wrap=True)
    with console.capture() as capture:
        for line in lines:
            text = Text()
            for piece, name in line:
                text.append(piece, None if name is None else f"{look[name].ink} on {look[name].colour}")
            text.rstrip()
            console.print(text)
    return capture.get()
