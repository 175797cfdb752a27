"""Draws a part of a trace, as docs/trace.png shows one: python docs/site/draw_trace.py run.json FROM_MS TO_MS PICTURE.

It needs matplotlib, as the examples do (the extra `demo`).
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_COLOURS = {
    "call": "#9ecae1",
    "phase": "#3182bd",
    "wait": "#bdbdbd",
    "put": "#fd8d3c",
    "get": "#74c476",
    "ack": "#31a354",
    "publish": "#9e6ebd",
    "fetch": "#756bb1",
}
_ROW, _DEPTH = 1.0, 0.18


def draw(trace: dict[str, Any], begins_us: float, ends_us: float, picture: Path) -> None:
    """Draw the slices and arrows between two moments."""
    events = trace["traceEvents"]
    named = {e["pid"]: e["args"]["name"].partition(" ")[0] for e in events if e["name"] == "process_name"}
    slices = [
        e
        for e in events
        if e["ph"] == "X"
        and e["ts"] < ends_us
        and e["ts"] + e["dur"] > begins_us
        and named[e["pid"]] != "driver"
    ]
    tracks = sorted({(e["pid"], e["tid"]) for e in slices if e["cat"] in ("call", "wait", "phase")})
    rows = {track: len(tracks) - 1 - place for place, track in enumerate(tracks)}
    figure = Figure(figsize=(13, 0.9 * len(tracks) + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for track in tracks:
        open_until: list[float] = []
        for each in sorted(
            (e for e in slices if (e["pid"], e["tid"]) == track), key=lambda e: (e["ts"], -e["dur"])
        ):
            while open_until and open_until[-1] <= each["ts"]:
                open_until.pop()
            low = rows[track] + min(len(open_until), 4) * _DEPTH
            open_until.append(each["ts"] + each["dur"])
            began, ended = max(each["ts"], begins_us), min(each["ts"] + each["dur"], ends_us)
            axes.barh(
                low,
                (ended - began) / 1e3,
                left=(began - begins_us) / 1e3,
                height=_DEPTH,
                align="edge",
                color=_COLOURS[each["cat"]],
                edgecolor="white",
                linewidth=0.3,
            )
            if ended - began > 0.045 * (ends_us - begins_us):
                axes.text(
                    (began - begins_us) / 1e3, low + 0.02, f" {each['name']}", fontsize=6.5, clip_on=True
                )
    _draw_arrows(axes, events, rows, begins_us, ends_us)
    axes.set_yticks([row + 0.3 for row in rows.values()], [named[pid] for pid, _ in rows])
    axes.set(xlabel="milliseconds", xlim=(0, (ends_us - begins_us) / 1e3))
    for name in ("top", "right", "left"):
        axes.spines[name].set_visible(False)
    seen = [cat for cat in _COLOURS if any(e["cat"] == cat for e in slices)]
    boxes = [axes.barh(-9, 0, color=_COLOURS[cat]) for cat in seen]
    axes.legend(
        boxes, seen, ncols=len(seen), loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=8
    )
    axes.set_ylim(-0.1, len(tracks) - 0.1)
    figure.savefig(picture, dpi=130)


def _draw_arrows(
    axes: Any,
    events: list[dict[str, Any]],
    rows: dict[tuple[int, int], int],
    begins_us: float,
    ends_us: float,
) -> None:
    flows = defaultdict(list)
    for event in events:
        if (
            event.get("cat") == "flow"
            and begins_us < event["ts"] < ends_us
            and (event["pid"], event["tid"]) in rows
        ):
            flows[event["id"]].append(event)
    for flow in flows.values():
        flow.sort(key=lambda event: event["ts"])
        for before, after in itertools.pairwise(flow):
            ends = [((e["ts"] - begins_us) / 1e3, rows[e["pid"], e["tid"]] + 0.4) for e in (before, after)]
            style = {"arrowstyle": "->", "color": "#d62728", "lw": 0.5, "alpha": 0.6}
            axes.annotate("", xy=ends[1], xytext=ends[0], arrowprops=style)


if __name__ == "__main__":
    source, first, last, target = sys.argv[1:]
    draw(json.loads(Path(source).read_text()), float(first) * 1e3, float(last) * 1e3, Path(target))
