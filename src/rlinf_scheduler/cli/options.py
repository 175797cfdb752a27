"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Job = Annotated[
    str | None,
    typer.Option(
        metavar="PID|NAME", help="Which job: its driver's process id, or its name if it outlives its drivers."
    ),
]
Address = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="The cluster's head; else the one that runs here.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print it as data.")]
NodesTimeoutS = Annotated[float, typer.Option(min=0, help="How long to wait for nodes, in seconds.")]
