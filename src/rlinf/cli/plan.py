"""`rlinf plan`: who would run where, without Ray, a cluster or an accelerator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rlinf.cli.exits import readable_errors
from rlinf.cli.plan_table import render_plan
from rlinf.scheduler.component_placement import ComponentPlacement
from rlinf.scheduler.config import try_read_cluster_config
from rlinf.scheduler.errors import ConfigError, raise_config_errors
from rlinf.scheduler.placement import Topology, plan_as_data

_NODES_HELP = "The cluster to plan on: 2x8 is two nodes of eight accelerators, 8,4,0 three uneven nodes."


def plan(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file with a `cluster:` section.")],
    nodes: Annotated[str | None, typer.Option(metavar="SHAPE", help=_NODES_HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as data.")] = False,
    every_rank: Annotated[
        bool, typer.Option("--ranks", help="List every rank, however many there are.")
    ] = False,
) -> None:
    """Show who would run where, and who shares what, without a cluster."""
    with readable_errors():
        placement = ComponentPlacement(
            config, Topology.parse(nodes) if nodes is not None else _shape_in_file(config)
        )
        if as_json:
            typer.echo(json.dumps(plan_as_data(placement.plan), indent=2))
        else:
            typer.echo(render_plan(placement.plan, every_rank=every_rank), nl=False)


def _shape_in_file(file: Path) -> Topology:
    """The pretend cluster that the file itself names; without one, every mistake of the file is told with it."""
    checked, errors = try_read_cluster_config(file)
    if checked.simulate is not None:
        return Topology.parse(checked.simulate)
    if "simulate" not in checked.source.section:
        count = checked.num_nodes or 2
        errors.append(
            ConfigError(
                "how many accelerators do the nodes have? The file does not say",
                path="cluster",
                hint=f"add `--nodes {count}x8`, or `simulate: {count}x8` under `cluster:`",
            )
        )
    raise_config_errors(checked.source.in_order(errors))
    raise ConfigError("`simulate` is empty", path="cluster.simulate", file=str(file))
