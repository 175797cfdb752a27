"""A plan as a page for a browser: one file that asks for nothing from outside."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from importlib.resources import files
from typing import Any

from rlinf_scheduler.cli.plan_map import Appearance, attached_hardware, looks, node_group_labels, render_map
from rlinf_scheduler.cli.plan_table import summary_line
from rlinf_scheduler.cli.planned import PlanReport
from rlinf_scheduler.planning import ComponentPlan, Node, Topology
from rlinf_scheduler.wording import counted, node_list

_MARKER = re.compile(r"@([A-Z_]+)@")


def render_page(report: PlanReport, title: str) -> str:
    """The whole page. Texts of the config stay text everywhere: none of it can become markup or script."""
    parts = files("rlinf_scheduler.cli").joinpath("page")
    look = looks(report.plan.components)
    warnings = sorted(report.warnings, key=lambda warning: warning.is_note)
    texts = {
        "TITLE": html.escape(f"Plan of {title}"),
        "SUMMARY": html.escape(summary_line(report.plan)),
        "STYLE": parts.joinpath("plan.css").read_text(encoding="utf-8"),
        "SCRIPT": parts.joinpath("plan.js").read_text(encoding="utf-8"),
        "LEGEND": "\n".join(_legend_item(c, look[name]) for name, c in report.plan.components.items()),
        "WARNINGS": "\n".join(_warning_item(w.text, is_note=w.is_note) for w in warnings) or "<li>none</li>",
        "PLAIN_MAP": html.escape(render_map(report.plan, report.sharing, colour=False)),
        "DATA": _inert(page_data(report) | {"warnings": [list(w.node_ranks) for w in warnings]}),
    }
    # In one pass: a component may be called @DATA@.
    return _MARKER.sub(lambda match: texts[match[1]], parts.joinpath("plan.html").read_text(encoding="utf-8"))


def page_data(report: PlanReport) -> dict[str, Any]:
    """What the page's script draws: a row a run, not a row a process; what many rows share stands once."""
    plan = report.plan
    look = looks(plan.components)
    kinds, groups, lists = _Pool(), _Pool(), _Pool()
    components = [
        {
            "name": name,
            "letter": look[name].letter,
            "colour": look[name].colour,
            "ink": look[name].ink,
            "runs": _runs(component, kinds, groups, lists),
        }
        for name, component in plan.components.items()
    ]
    labels = _Pool()
    nodes = _nodes(plan.topology, labels)
    return {
        "nodes": nodes,
        "sections": _sections(nodes, labels.values),
        "labels": labels.values,
        "components": components,
        "kinds": kinds.values,
        "groups": groups.values,
        "lists": lists.values,
    }


class _Pool:
    """Distinct values, numbered."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    @property
    def values(self) -> list[Any]:
        return list(self._numbers)


def _runs(component: ComponentPlan, kinds: _Pool, groups: _Pool, lists: _Pool) -> list[list[int]]:
    return [
        [
            run.first_rank,
            run.node_rank,
            run.first_local_rank,
            run.local_world_size,
            kinds.number((run.cut.kind.hardware_type, run.cut.kind.accelerators)),
            groups.number(run.cut.node_group),
            run.cut.shift,
            lists.number(run.cut.local_hardware_ranks),
            -1 if run.cut.hardware_ranks is None else lists.number(run.cut.hardware_ranks),
        ]
        for run in component.runs
    ]


def _nodes(topology: Topology, labels: _Pool) -> list[dict[str, Any]]:
    attached = attached_hardware(topology)
    of_nodes = zip(topology.nodes, node_group_labels(topology), strict=True)
    return [
        _node(node) | {"attached": attached.get(rank, []), "groups": labels.number(groups)}
        for rank, (node, groups) in enumerate(of_nodes)
    ]


def _sections(nodes: list[dict[str, Any]], labels: list[tuple[str, ...]]) -> list[dict[str, Any]]:
    """The page's sections: the nodes that are in the same groups, with a heading."""
    ranks_of: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        ranks_of.setdefault(node["groups"], []).append(rank)
    sections = []
    for number, ranks in ranks_of.items():
        there, has = node_list(ranks), _hardware_text([nodes[rank] for rank in ranks])
        title = ", ".join(labels[number]) or "in no node group"
        title, text = (title, f"{there}: {has}") if any(labels) else (there, has)
        sections.append({"title": title, "text": text, "ranks": ranks})
    return sections


def _hardware_text(nodes: list[dict[str, Any]]) -> str:
    counts: Counter[str] = Counter()
    for node in nodes:
        if node["count"]:
            counts[f"{node['type']} {node['model']}".rstrip()] += node["count"]
        counts.update(dict(node["attached"]))
    return ", ".join(f"{number} {kind}" for kind, number in counts.items()) or "no accelerators"


def _node(node: Node) -> dict[str, Any]:
    names = node.accelerator_names
    plain = names == tuple(map(str, range(len(names))))
    return {
        "id": node.node_id,
        "ip": node.ip,
        "hostname": node.hostname,
        "type": node.accelerator_type,
        "model": node.accelerator_model,
        "count": node.num_accelerators,
        "visible": None if plain else names,
    }


def _legend_item(component: ComponentPlan, look: Appearance) -> str:
    nodes = node_list({run.node_rank for run in component.runs})
    facts = f"{counted(component.world_size, 'rank')} on {nodes}; '{','.join(component.node_groups)}'"
    return (
        f'<li><label><input type="checkbox" checked>'
        f'<span class="swatch" style="background:{look.colour};color:{look.ink}">{html.escape(look.letter)}</span>'
        f"<span>{html.escape(component.name)}</span><small>{html.escape(facts)}</small></label>"
        f'<button type="button" class="only">only</button></li>'
    )


def _warning_item(text: str, *, is_note: bool) -> str:
    return f'<li class="{"note" if is_note else "warning"}">{html.escape(text)}</li>'


def _inert(data: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
