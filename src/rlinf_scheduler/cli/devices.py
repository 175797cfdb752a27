"""`rlinf devices`: which job has which accelerators of a cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from rlinf_scheduler.cli.exits import readable_errors
from rlinf_scheduler.cli.options import Address, AsJson, NodesTimeoutS
from rlinf_scheduler.cli.running import HOW_TO, running_cluster
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.wording import clock_text, counted, device_list, text_table

if TYPE_CHECKING:
    from rlinf_scheduler.config.fleet import Fleet
    from rlinf_scheduler.ray_backend.holds import DeviceHold

# A cluster that runs answers in milliseconds, and another one has no holds.
ANSWER_S = 5.0


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
        typer.echo("\n".join(_table(fleet, holds, elsewhere)))


def _table(fleet: Fleet, holds: list[DeviceHold], elsewhere: dict[str, int]) -> Iterator[str]:
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
