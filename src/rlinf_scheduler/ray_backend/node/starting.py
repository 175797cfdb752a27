"""Starting a node of a Ray on this machine: `ray start`, with a token, a rank, an address and a private folder."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import msgspec

from rlinf_scheduler.errors import ClusterError, ClusterTimeout
from rlinf_scheduler.hardware.vendors import NODE_RANK_VARIABLE
from rlinf_scheduler.proc import marked
from rlinf_scheduler.ray_backend.authentication import TOKEN, Access, authentication_at
from rlinf_scheduler.ray_backend.gcs_question import GcsAnswer, ask_gcs
from rlinf_scheduler.ray_backend.node import copying, variables
from rlinf_scheduler.ray_backend.node.folders import TMPDIR_VARIABLE, prune_sessions, ray_folder
from rlinf_scheduler.ray_backend.node.interfaces import LOOPBACK
from rlinf_scheduler.ray_backend.node.records import (
    MARK_VARIABLE,
    NodeRecord,
    keep_record,
    read_records,
)
from rlinf_scheduler.ray_backend.node.stopping import processes_of, stop_node
from rlinf_scheduler.ray_backend.ray_token import MODE_VARIABLE, RayToken, own_token

DEFAULT_PORT = 6379
_CLUSTER_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_USAGE_VARIABLE = "RAY_USAGE_STATS_ENABLED"


_SHOWN_LINES = 12
_ASKED_S = 2.0
# Unless `ray start` is told otherwise, which it does not look at before it has started half of a node.
_WORKER_PORTS = range(10002, 20000)
_WORKER_PORT_OPTIONS = ("--min-worker-port", "--max-worker-port", "--worker-port-list")
_RAY = (sys.executable, "-m", "ray.scripts.scripts")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How a node is to be started.

    Attributes:
        address: of the Ray to join, HOST:PORT; None: a new one, whose head this node is.
        port: where a new Ray listens.
        node_rank: which node of the cluster it is; None: whichever is free.
        ip: the address at which the others reach it.
        authentication: "token" or "disabled", of a new Ray; one that is joined says what it wants.
        extra: options for `ray start` itself.
        timeout_s: how long all of it may take, in seconds.
    """

    ip: str
    address: str | None = None
    port: int = DEFAULT_PORT
    node_rank: int | None = None
    authentication: str = TOKEN
    extra: tuple[str, ...] = ()
    timeout_s: float = 120.0

    @property
    def cluster_address(self) -> str:
        """Where the Ray is reached."""
        return self.address or (f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}")


@dataclass(frozen=True, slots=True)
class StartedNode:
    """A node that runs, and the token that its Ray asks for (None: none)."""

    record: NodeRecord
    token: RayToken | None


def start_node(options: NodeOptions, environment: Mapping[str, str] = os.environ) -> StartedNode:
    """Start this machine as a node of a Ray; its processes outlive this one.

    Raises:
        ClusterError: it is one already, its port is taken, the Ray refuses it, or `ray start` fails; the text has its
            last lines. Nothing stays behind.
        ClusterTimeout: no Ray answers at the address, or `ray start` takes longer than `options.timeout_s`.
    """
    _check_not_here(options)
    access = _access(options, environment)
    mark = secrets.token_hex(16)
    folder = ray_folder(environment)
    prune_sessions(folder / "ray")
    settings = {
        MARK_VARIABLE: mark,
        **variables.of_a_node(environment),
        TMPDIR_VARIABLE: str(folder),
        _USAGE_VARIABLE: environment.get(_USAGE_VARIABLE, "0"),
        **access.settings(),
        # Ray takes 127.0.0.1 for a node, and listens there and nowhere else, only where it believes to be on a laptop.
        **({_CLUSTER_VARIABLE: "0"} if options.ip in LOOPBACK else {}),
        **({} if options.node_rank is None else {NODE_RANK_VARIABLE: str(options.node_rank)}),
    }
    record = NodeRecord(
        mark,
        options.cluster_address,
        options.ip,
        options.address is None,
        options.node_rank,
        access.mode,
        str(folder),
        (),
    )
    try:
        _run(_ray_start(options, folder), {**environment, **settings}, folder, options.timeout_s)
        record = msgspec.structs.replace(record, processes=tuple(marked(MARK_VARIABLE, mark)))
        keep_record(record)
    except BaseException:  # an interruption too: nothing that was started stays
        stop_node(record, grace_s=0.0)
        raise
    return StartedNode(record, access.token)


def _check_not_here(options: NodeOptions) -> None:
    for record in read_records():
        same = (record.address, record.ip) == (options.cluster_address, options.ip)
        if same and processes_of(record):
            raise ClusterError(f"{record} runs here already; `rlinf node stop` ends it")


def _access(options: NodeOptions, environment: Mapping[str, str]) -> Access:
    if options.address is not None:
        return authentication_at(options.address, environment, options.timeout_s)
    moved = any(argument.startswith(_WORKER_PORT_OPTIONS) for argument in options.extra)
    if options.port in _WORKER_PORTS and not moved:
        raise ClusterError(
            f"port {options.port} is one of those that Ray gives its workers, {_WORKER_PORTS[0]} to "
            f"{_WORKER_PORTS[-1]}: choose another port (--port), or other ones for them (--min-worker-port, "
            "--max-worker-port)"
        )
    there = ask_gcs(options.ip, options.port, None, _ASKED_S)
    if there is not GcsAnswer.NOBODY:
        what = "something" if there is GcsAnswer.NOT_RAY else "a Ray"
        raise ClusterError(
            f"{what} listens at {options.cluster_address} already: choose another port for this one (--port), "
            "or end that one first"
        )
    mode = environment.get(MODE_VARIABLE, "").strip().lower()
    if mode not in ("", options.authentication):
        raise ClusterError(
            f"{MODE_VARIABLE}={mode} is set here, and a Ray of mode '{options.authentication}' was asked for"
        )
    is_open = options.authentication != TOKEN
    return Access(options.authentication, None if is_open else own_token(environment))


def _ray_start(options: NodeOptions, folder: Path) -> list[str]:
    if options.address is None:
        where = ["--head", f"--port={options.port}", "--include-dashboard=false", "--no-monitor"]
    else:
        where = [f"--address={options.address}"]
    # What is given last counts.
    return [
        *_RAY,
        "start",
        *where,
        f"--node-ip-address={options.ip}",
        f"--temp-dir={folder}/ray",
        *(f"--labels={name}={value}" for name, value in copying.LABELS.items()),
        *options.extra,
    ]


def _run(command: Sequence[str], environment: Mapping[str, str], folder: Path, timeout_s: float) -> None:
    """Run `ray start`, which ends when the node runs.

    Its output goes to a file: the processes that it starts keep what it has open.
    """
    with (folder / f"start-{os.getpid()}.log").open("w+") as output:
        Path(output.name).unlink()
        try:
            done = subprocess.run(  # noqa: S603 - what this user asked for
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterTimeout(
                f"`ray start` has not ended after {timeout_s:.0f} s:{_end_of(output)}"
            ) from error
        if done.returncode:
            raise ClusterError(f"`ray start` failed (status {done.returncode}):{_end_of(output)}")


def _end_of(output: TextIO) -> str:
    output.seek(0)
    return "".join(f"\n  {line}" for line in output.read().splitlines()[-_SHOWN_LINES:])
