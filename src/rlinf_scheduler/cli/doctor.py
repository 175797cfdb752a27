"""`rlinf doctor`: what is wrong with a cluster, and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlinf_scheduler.cli.common import (
    ANSWER_IS_NO,
    HOW_TO,
    NONE_FOUND,
    Address,
    NodesTimeoutS,
    readable_errors,
)
from rlinf_scheduler.wording import counted, printable

if TYPE_CHECKING:
    from rlinf_scheduler.doctor.facts import ClusterFacts, Finding


def doctor(
    config: Annotated[
        Path | None,
        typer.Argument(help="A config: the robots that it declares are looked at, from their nodes."),
    ] = None,
    address: Address = None,
    num_nodes: Annotated[int | None, typer.Option(min=1, help="How many nodes there should be.")] = None,
    timeout_s: NodesTimeoutS = 60.0,
    ports: Annotated[
        str | None,
        typer.Option(metavar="FIRST-LAST", help="`cluster.network.ports` of your configs, if any."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print facts and findings as data.")] = False,
) -> None:
    """Look at every node for what goes wrong in practice, or at this machine alone. Exits with 1 at a fault."""
    # Ray takes a second to load, and the other commands do without it.
    from rlinf_scheduler.config import read_cluster_config  # noqa: PLC0415
    from rlinf_scheduler.config.network import read_ports  # noqa: PLC0415
    from rlinf_scheduler.doctor.checks import find_faults  # noqa: PLC0415
    from rlinf_scheduler.doctor.examination import examine  # noqa: PLC0415

    with readable_errors():
        groups = () if config is None else read_cluster_config(config).node_groups
        facts = examine(address, num_nodes, timeout_s, read_ports(ports), groups)
    findings = find_faults(facts)
    if as_json:
        typer.echo(json.dumps(_as_data(facts, findings), indent=2))
    else:
        typer.echo("\n".join(_text(facts, findings)))
    if any(finding.is_fault for finding in findings):
        raise typer.Exit(ANSWER_IS_NO)


def _text(facts: ClusterFacts, findings: Sequence[Finding]) -> Iterator[str]:
    from rlinf_scheduler.doctor.checks import CHECKS  # noqa: PLC0415

    yield f"looked at {_where(facts)}"
    for node in facts.nodes:
        seen, on = node.accelerators, node.versions
        devices = f", {counted(seen.num_counted, f'{seen.vendor} device')}" if seen.num_counted else ""
        head = ", head" if node.is_head else ""
        software = f"Python {on.python}, Ray {on.ray}, rlinf-scheduler {on.package}"
        mode = f", authentication {node.token.mode}" if facts.address else ""
        yield f"  {printable(node.name)}{head}: {software}{mode}{devices}"
    for each in facts.hardware:
        if each.num_pieces:
            yield f"  {printable(each.node)}: {counted(each.num_pieces, 'piece')} of declared hardware"
    for finding in findings:
        where = f"{finding.node}: " if finding.node else ""
        yield f"{'FAULT' if finding.is_fault else 'note '} {finding.check}: {_in_a_line(where + finding.problem)}"
        yield f"      {_in_a_line(finding.remedy)}"
    faults = sum(finding.is_fault for finding in findings)
    notes = len(findings) - faults
    yield f"{counted(len(CHECKS), 'check')}: {counted(faults, 'fault')}, {counted(notes, 'note')}"


def _where(facts: ClusterFacts) -> str:
    if facts.address:
        return f"the Ray at {facts.address}"
    if facts.joining_error:
        return "this machine alone: no cluster could be joined"
    return f"this machine alone: {NONE_FOUND}; {HOW_TO}"


def _in_a_line(text: str) -> str:
    lines = "; ".join(line.strip() for line in text.splitlines())
    return printable(lines.replace(":; ", ": "))


def _as_data(facts: ClusterFacts, findings: Sequence[Finding]) -> dict[str, object]:
    import msgspec  # noqa: PLC0415 - the other commands do without it

    return {
        "findings": [
            {
                "check": finding.check,
                "is_fault": finding.is_fault,
                "node": finding.node,
                "problem": finding.problem,
                "remedy": finding.remedy,
            }
            for finding in findings
        ],
        "facts": msgspec.to_builtins(facts),
    }
