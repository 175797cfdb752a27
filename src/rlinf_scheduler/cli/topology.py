"""`rlinf topology` and `rlinf devices`: what the nodes of a live cluster have, and which job holds what of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlinf_scheduler.cli.common import (
    ANSWER_S,
    HOW_TO,
    Address,
    AsJson,
    NodesTimeoutS,
    readable_errors,
    running_cluster,
)
from rlinf_scheduler.errors import ClusterError, ConfigError
from rlinf_scheduler.wording import clock_text, counted, device_list, text_table

if TYPE_CHECKING:
    from rlinf_scheduler.config.fleet import Fleet, FleetNode
    from rlinf_scheduler.ray_backend.holds import DeviceHold

_GIB = 1 << 30
_COLUMNS = ("node", "ip", "hostname", "accelerators", "visible as", "memory", "NUMA", "interfaces", "python")


def topology(
    out: Annotated[Path | None, typer.Option(help="Save it, for `rlinf plan CONFIG --fleet FILE`.")] = None,
    num_nodes: Annotated[int | None, typer.Option(min=1, help="Wait until there are so many nodes.")] = None,
    address: Annotated[
        str | None,
        typer.Option(help="A Ray address; else the cluster that runs here, else this machine alone."),
    ] = None,
    simulate: Annotated[str | None, typer.Option(help="Show simulated nodes instead, such as 2x8.")] = None,
    timeout_s: NodesTimeoutS = 120.0,
    as_json: AsJson = False,
) -> None:
    """Probe every node of a cluster, on the node itself, and show what it has."""
    with readable_errors():
        if out is not None:
            _check_writable(out)
        fleet = _probe(num_nodes, address, simulate, timeout_s)
        if out is not None:
            # Its checks take a while to load, and only this needs them.
            from rlinf_scheduler.config.fleet_file import format_fleet  # noqa: PLC0415

            out.write_text(format_fleet(fleet))
    if as_json:
        typer.echo(json.dumps({"nodes": [_as_data(node) for node in fleet.nodes]}, indent=2))
    else:
        typer.echo("\n".join(_topology_table(fleet)))
    if out is not None:
        typer.echo(f"saved to {out}", err=True)


def _check_writable(out: Path) -> None:
    # Before a cluster is started for it.
    if not out.parent.is_dir():
        raise ConfigError(f"{out} cannot be written: there is no folder {out.parent}")
    if out.is_dir() or (out.exists() and not os.access(out, os.W_OK)) or not os.access(out.parent, os.W_OK):
        raise ConfigError(f"{out} cannot be written")


def _probe(num_nodes: int | None, address: str | None, simulate: str | None, timeout_s: float) -> Fleet:
    # Ray takes a second to load, and the other commands do without it.
    from rlinf_scheduler.cluster import SIMULATE_VARIABLE, Cluster  # noqa: PLC0415

    simulate = simulate or os.environ.get(SIMULATE_VARIABLE) or None
    # Several nodes are waited for at an address, where there is none nobody starts them.
    if simulate is None and (num_nodes or 1) == 1 and running_cluster(address, timeout_s) == "":
        typer.echo(f"no cluster runs here: this is this machine alone; {HOW_TO}", err=True)
    with Cluster(
        num_nodes=num_nodes, simulate=simulate, address=address, start_timeout_s=timeout_s
    ) as cluster:
        return cluster.fleet


def _as_data(node: FleetNode) -> dict[str, Any]:
    data = asdict(node)
    data.pop("path", None)
    return data


def _topology_table(fleet: Fleet) -> Iterator[str]:
    rows = [_COLUMNS, *(_row(rank, node) for rank, node in enumerate(fleet.nodes))]
    yield from text_table(rows)
    total = sum(len(node.accelerators) for node in fleet.nodes)
    yield f"{counted(len(fleet.nodes), 'node')} with {counted(total, 'accelerator')}"


def _row(rank: int, node: FleetNode) -> tuple[str, ...]:
    accelerators = node.accelerators
    kinds = dict.fromkeys(a.model or a.type for a in accelerators)
    memory = dict.fromkeys(f"{a.memory_bytes / _GIB:.0f} GiB" for a in accelerators if a.memory_bytes)
    numa = dict.fromkeys(str(a.numa_node) for a in accelerators if a.numa_node is not None)
    return (
        str(rank),
        node.ip,
        node.hostname,
        f"{len(accelerators)} {', '.join(kinds)}" if accelerators else "-",
        ",".join(a.visible for a in accelerators) or "-",
        ", ".join(memory) or "-",
        ",".join(numa) or "-",
        ", ".join(f"{i.name} {i.address}" for i in node.interfaces) or "-",
        node.python or "-",
    )


# -- who holds them ------------------------------------------------------------------------------------


def devices(
    address: Address = None,
    timeout_s: NodesTimeoutS = 120.0,
    as_json: AsJson = False,
) -> None:
    """Show which job holds which accelerators, and which are free."""
    with readable_errors():
        # Ray takes a second to load, and the other commands do without it.
        from rlinf_scheduler.cluster import SIMULATE_VARIABLE, Cluster  # noqa: PLC0415
        from rlinf_scheduler.ray_backend.holds import given_elsewhere, holds_in_cluster  # noqa: PLC0415

        found = running_cluster(address, min(timeout_s, ANSWER_S))
        if found == "":
            raise ClusterError(
                f"no cluster runs here (a simulated one belongs to its program alone); {HOW_TO}"
            )
        os.environ.pop(SIMULATE_VARIABLE, None)  # nobody holds anything of a cluster that begins here
        with Cluster(address=found, start_timeout_s=timeout_s) as cluster:
            fleet, holds = cluster.fleet, holds_in_cluster()
            elsewhere = given_elsewhere(holds)
    if as_json:
        typer.echo(json.dumps({"holds": [asdict(hold) for hold in holds]}, indent=2))
    else:
        typer.echo("\n".join(_holds_table(fleet, holds, elsewhere)))


def _holds_table(fleet: Fleet, holds: list[DeviceHold], elsewhere: dict[str, int]) -> Iterator[str]:
    rows = [("node", "ip", "devices", "held by", "since")]
    for rank, node in enumerate(fleet.nodes):
        free = [accelerator.visible for accelerator in node.accelerators]
        for hold in holds:
            if hold.node_id == node.node_id:
                free = [name for name in free if name not in hold.devices]
                rows.append(
                    (str(rank), node.ip, device_list(hold.devices), hold.holder, clock_text(hold.since))
                )
        if free:
            others = elsewhere.get(node.node_id, 0)
            state = f"{counted(others, 'of them', '')} given by Ray to other programs" if others else "free"
            rows.append((str(rank), node.ip, device_list(free), state, ""))
    yield from text_table(rows) if len(rows) > 1 else ["the cluster has no accelerators"]
