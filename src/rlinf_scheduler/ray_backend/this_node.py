"""This machine as a node of a Ray, by `ray start`: started, with a token, a rank and an address; noted; and ended.

What was started is kept in this user's private directory until it is stopped. What ends is the node's own processes
and what these have started, and nobody else's.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import msgspec

from rlinf_scheduler.errors import ClusterError, ClusterTimeout
from rlinf_scheduler.hardware.vendors import NODE_RANK_VARIABLE
from rlinf_scheduler.proc import (
    KILLED_S,
    ProcessId,
    held,
    living,
    marked,
    send,
    variable_of,
    wait_for_ends,
    with_descendants,
)
from rlinf_scheduler.ray_backend import variables
from rlinf_scheduler.ray_backend.authentication import (
    MODE_VARIABLE,
    TOKEN,
    Access,
    RayToken,
    authentication_at,
    host_and_port,
    own_token,
)
from rlinf_scheduler.ray_backend.folders import (
    TMPDIR_VARIABLE,
    own_directory,
    prune_sessions,
    ray_folder,
)
from rlinf_scheduler.ray_backend.gcs_question import GcsAnswer, ask_gcs
from rlinf_scheduler.ray_backend.interfaces import LOOPBACK

# -- what was started here ---------------------------------------------------------------------------


# Every process of a node is started with it, and with the node's mark as its value.
MARK_VARIABLE = "RLINF_NODE_MARK"
_FOLDER = "nodes"
# Each node has one of the second, and a head one of the first; no program of a user's is called so.
_NODE_PROGRAMS = ("gcs_server", "raylet")


class NodeRecord(msgspec.Struct, frozen=True):
    """A node of a Ray, as it was started here.

    Attributes:
        mark: what its processes are told by.
        node_rank: which node it is to be; None: whichever is free.
        authentication: "token" or "disabled".
        folder: where Ray keeps its sockets and its log.
        processes: those that ran when it had been started.
    """

    mark: str
    address: str
    ip: str
    is_head: bool
    node_rank: int | None
    authentication: str
    folder: str
    processes: tuple[ProcessId, ...]

    def __str__(self) -> str:
        rank = "" if self.node_rank is None else f"{self.node_rank} "
        return f"node {rank}({self.ip}) of the Ray at {self.address}"


def keep_record(record: NodeRecord) -> None:
    """Note a node that was started."""
    folder = own_directory() / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / record.mark
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(record))


def forget_record(record: NodeRecord) -> None:
    """The node is stopped."""
    (own_directory() / _FOLDER / record.mark).unlink(missing_ok=True)


def folders_elsewhere() -> set[str]:
    """The folders for temporary files of nodes that run here, were started with another one, and are not known here."""
    known = {record.mark for record in read_records()}
    return {
        variable_of(process, "TMPDIR") or "/tmp"  # noqa: S108 - the machine's own, named to the user
        for process in living()
        if process.name in _NODE_PROGRAMS and variable_of(process, MARK_VARIABLE) not in (None, *known)
    }


def read_records() -> list[NodeRecord]:
    """The nodes that were started here and not stopped, the oldest first; some may have ended by themselves."""
    folder = own_directory() / _FOLDER
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            found.append((path.stat().st_mtime_ns, msgspec.json.decode(path.read_bytes(), type=NodeRecord)))
    return [record for _, record in sorted(found, key=lambda entry: entry[0])]


# -- stopping ----------------------------------------------------------------------------------------


GRACE_S = 10.0
# The head's own service keeps nothing on a disk, and while other nodes ask it something it does not end when asked.
_SERVICE, _SERVICE_GRACE_S = "gcs_server", 1.0
_HEAD_ASKED_S = 1.0
# How its raylet is told its node's name, and why a node goes: the one reason that Ray never refuses.
_ID_OPTION, _DRAIN_REASON = "--node_id=", "DRAIN_NODE_REASON_PREEMPTION"


def processes_of(record: NodeRecord) -> list[ProcessId]:
    """What lives of a node: its first processes, what carries its mark, and what all of these have started."""
    marks = marked(MARK_VARIABLE, record.mark)
    return with_descendants({*record.processes, *marks}, living())


def drain_node(record: NodeRecord, drain_s: float) -> bool:
    """Have Ray drain a node: nothing is started there any more, and jobs have so long to leave it, in seconds.

    Returns:
        Whether it has ended by itself, as it does when nothing runs there any more; and not if Ray cannot be asked.
    """
    deadline = time.monotonic() + drain_s
    raylets = [process for process in record.processes if process.name == "raylet"]
    with contextlib.suppress(OSError, ClusterError, subprocess.TimeoutExpired), held(raylets) as descriptors:
        access = authentication_at(record.address, os.environ, min(drain_s, _HEAD_ASKED_S))
        for node_id in filter(None, map(_node_id_of, raylets)):
            options = [f"--address={record.address}", f"--node-id={node_id}", f"--reason={_DRAIN_REASON}"]
            options.append("--reason-message=its machine is to be given back")
            command = [*_RAY, "drain-node", *options, f"--deadline-remaining-seconds={round(drain_s)}"]
            environment = {**os.environ, **access.settings()}
            subprocess.run(command, env=environment, capture_output=True, timeout=drain_s, check=False)  # noqa: S603
            return not wait_for_ends(descriptors.values(), max(0.0, deadline - time.monotonic()))
    return False


def _node_id_of(raylet: ProcessId) -> str:
    """Ray's name of a node, which its raylet was started with; "" if it is gone."""
    options = Path(f"/proc/{raylet.pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return next((each.removeprefix(_ID_OPTION) for each in options if each.startswith(_ID_OPTION)), "")


def stop_node(record: NodeRecord, grace_s: float = GRACE_S) -> int:
    """End a node; how many processes it had.

    Its own processes are asked first, and take their workers along; after `grace_s` seconds what is left is killed.
    A node whose head is gone is killed at once: it would look for the head, to say that it leaves.

    Raises:
        ClusterTimeout: some cannot be killed; the text names them. The node is remembered.
    """
    if ask_gcs(*host_and_port(record.address), None, _HEAD_ASKED_S) is GcsAnswer.NOBODY:
        grace_s = 0.0
    ended: set[ProcessId] = set()
    # What is started while the others end is found the second time.
    for patience_s in (grace_s, 0.0):
        found = processes_of(record)
        ended.update(found)
        _end(found, record, patience_s)
    forget_record(record)
    return len(ended)


def _end(found: Collection[ProcessId], record: NodeRecord, grace_s: float) -> None:
    with held(found) as descriptors:
        if grace_s > 0:
            service = {d for process, d in descriptors.items() if process.name == _SERVICE}
            own = {d for process, d in descriptors.items() if process in record.processes}
            send(own - service, signal.SIGTERM)
            wait_for_ends(set(descriptors.values()) - service, grace_s)
            send(service, signal.SIGTERM)
            wait_for_ends(service, min(grace_s, _SERVICE_GRACE_S))
        send(descriptors.values(), signal.SIGKILL)
        stuck = wait_for_ends(descriptors.values(), KILLED_S)
        if stuck:
            names = ", ".join(f"{p.pid} ({p.name})" for p, d in descriptors.items() if d in stuck)
            raise ClusterTimeout(f"processes of {record} do not end: {names}")


# -- starting ----------------------------------------------------------------------------------------


DEFAULT_PORT = 6379
_CLUSTER_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
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
        node_rank: which node of the cluster it is; None: whichever is free.
        ip: the address at which the others reach it.
        authentication: "token" or "disabled", of a new Ray; one that is joined says what it wants.
        extra: options for `ray start` itself.
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
        variables.USAGE_VARIABLE: environment.get(variables.USAGE_VARIABLE, "0"),
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
        *(f"--labels={name}={value}" for name, value in variables.LABELS.items()),
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
