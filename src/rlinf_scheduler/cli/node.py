"""`rlinf node`: this machine as a node of a cluster, started and stopped."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlinf_scheduler.cli.common import ANSWER_IS_NO, AsJson, readable_errors
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.wording import counted

if TYPE_CHECKING:
    from rlinf_scheduler.ray_backend.this_node import NodeRecord, StartedNode

node = typer.Typer(no_args_is_help=True, help="Start and stop this machine as a node of a cluster.")


class Auth(StrEnum):
    """Whether who joins has to prove that he may."""

    token = "token"  # noqa: S105 - a word
    off = "off"


@node.command(context_settings={"allow_extra_args": True})
def start(
    context: typer.Context,
    head: Annotated[bool, typer.Option("--head", help="Begin a new cluster.")] = False,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Join the cluster whose head is there.")
    ] = None,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Which node this is in placements; else one that is free.")
    ] = None,
    interface: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|IP", help="How the others reach this machine; else as it reaches the head."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of a new cluster.")] = 6379,
    auth: Annotated[Auth, typer.Option(help="Of a new cluster: who may join it.")] = Auth.token,
    token_file: Annotated[
        str | None,
        typer.Option(metavar="FILE|-", help="The cluster's token; `-` reads it and keeps it in ~/.rlinf."),
    ] = None,
    block: Annotated[bool, typer.Option("--block", help="Stay, and stop the node when told to end.")] = False,
    drain_s: Annotated[
        float,
        typer.Option(min=0, help="With --block, how long jobs have to leave it at SIGTERM, in seconds."),
    ] = 0.0,
    timeout_s: Annotated[float, typer.Option(min=0, help="How long to wait for it, in seconds.")] = 120.0,
    as_json: AsJson = False,
) -> None:
    """Start this machine as a node. What follows `--` goes to `ray start`: `-- --num-gpus 4`."""
    if head == (address is not None):
        raise typer.BadParameter("give either --head, for a new cluster, or --address HOST:PORT, to join one")
    if address in ("auto", "local"):  # a program may write so, which joins what is there
        raise typer.BadParameter(
            f"{address!r} names no head: --address HOST:PORT, as the head's start printed it"
        )
    with readable_errors(), _stopped_at_the_end(only_if=block, drain_s=drain_s) as running:
        started = _start(context.args, address, rank, interface, port, auth, token_file, timeout_s)
        running.append(started.record)
        if as_json:
            typer.echo(json.dumps(_as_data(started.record) | _token_as_data(started), indent=2))
        else:
            typer.echo("\n".join(_told(started)))
        if block:
            _wait_for_end(started.record)


@node.command()
def stop(
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Only nodes of this cluster.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them, without asking.")] = False,
    grace_s: Annotated[
        float, typer.Option(min=0, help="How long they may take to end by themselves, in seconds.")
    ] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was stopped as data.")] = False,
) -> None:
    """Stop the node that `rlinf node start` started on this machine, and nothing else; of several, those meant."""
    from rlinf_scheduler.ray_backend.this_node import folders_elsewhere, processes_of, read_records, stop_node  # noqa: PLC0415 - slow to load  # noqa: PLC0415

    if everything and address is not None:
        raise typer.BadParameter("give either --address, for the nodes of one cluster, or --all")
    with readable_errors():
        there = read_records()
        records = [record for record in there if address in (None, record.address)]
        if address is None and not everything:
            _make_sure(records, may_ask=not as_json)
        stopped = [(record, stop_node(record, grace_s)) for record in records]
    if as_json:
        data = [_as_data(record) | {"num_processes": number} for record, number in stopped]
        typer.echo(json.dumps(data, indent=2))
    else:
        for record, number in stopped:
            typer.echo(f"stopped {record}: {counted(number, 'process', 'es')}")
    if not stopped:
        whose = "" if address is None else f" of the cluster at {address}"
        typer.echo(f"no node{whose} that `rlinf node start` started runs here", err=True)
        for record in filter(processes_of, there):
            typer.echo(f"this one does: {record}", err=True)
        for folder in sorted(folders_elsewhere()):
            command = f"`TMPDIR={folder} rlinf node stop`"  # where its record lies
            typer.echo(
                f"one was started with another folder for temporary files: {command} stops it", err=True
            )
        raise typer.Exit(ANSWER_IS_NO)


def _make_sure(records: list[NodeRecord], *, may_ask: bool) -> None:
    """Of several nodes that run, list them and have it said that all are meant.

    Raises:
        ConfigError: nobody can be asked.
        typer.Exit: they are not.
    """
    from rlinf_scheduler.ray_backend.this_node import processes_of  # noqa: PLC0415 - takes a while to load

    running = [record for record in records if processes_of(record)]
    if len(running) < 2:
        return
    listed = "".join(f"\n  {record}" for record in running)
    if not may_ask or not _at_a_terminal():
        raise ConfigError(
            f"{len(running)} nodes run here; say which to stop (--address), or that all are meant (--all):{listed}"
        )
    if not typer.confirm(f"{len(running)} nodes run here:{listed}\nstop all of them?", err=True):
        raise typer.Exit(ANSWER_IS_NO)


def _at_a_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _start(
    extra: list[str],
    address: str | None,
    rank: int | None,
    interface: str | None,
    port: int,
    auth: Auth,
    token_file: str | None,
    timeout_s: float,
) -> StartedNode:
    from rlinf_scheduler.ray_backend.interfaces import own_ip  # noqa: PLC0415 - takes a while to load
    from rlinf_scheduler.ray_backend.this_node import NodeOptions, start_node  # noqa: PLC0415

    environment = dict(os.environ)
    if token_file is not None:
        environment |= _given_token(token_file, environment)
    options = NodeOptions(
        ip=own_ip(interface, address),
        address=address,
        port=port,
        node_rank=rank,
        authentication="token" if auth is Auth.token else "disabled",
        extra=tuple(extra),
        timeout_s=timeout_s,
    )
    return start_node(options, environment)


def _given_token(token_file: str, environment: dict[str, str]) -> dict[str, str]:
    """The variables with which Ray takes a token from a file; one from the standard input is kept first."""
    from rlinf_scheduler.ray_backend.authentication import (  # noqa: PLC0415 - takes a while to load
        PATH_VARIABLE,
        TOKEN_VARIABLE,
        own_token_path,
        store_token,
    )

    path = Path(token_file).absolute()
    if token_file == "-":  # noqa: S105 - no password
        value = sys.stdin.read().strip()
        path = own_token_path(environment)
        if not value:
            raise ConfigError("there is no token on the standard input")
        if store_token(path, value).value != value:
            raise ConfigError(
                f"another token lies in {path}: remove it, or keep this one in a file of its own (--token-file FILE)"
            )
    return {TOKEN_VARIABLE: "", PATH_VARIABLE: str(path)}


def _told(started: StartedNode) -> list[str]:
    record, token = started.record, started.token
    lines = [f"started {record}"]
    if record.authentication == "disabled":
        lines.append("anybody who reaches it can run programs on it: it asks for no token")
    elif token is not None:
        lines.append(f"it asks for {token}")
    lines.append(f"log: {record.folder}/ray/session_latest/logs")
    if not record.is_head:
        return lines
    join = f"rlinf node start --address {record.address}"
    lines += ["", "on every other machine:", f"    {join} --rank 1    # and 2, 3, ..."]
    if token is not None and token.path is not None:
        lines += [
            "where it does not have this home folder, with the token:",
            f"    ssh MACHINE {join} --rank 1 --token-file - < {shlex.quote(str(token.path))}",
        ]
    return lines


def _as_data(record: NodeRecord) -> dict[str, object]:
    return {
        "address": record.address,
        "ip": record.ip,
        "is_head": record.is_head,
        "node_rank": record.node_rank,
        "authentication": record.authentication,
        "folder": record.folder,
        "processes": [{"pid": process.pid, "name": process.name} for process in record.processes],
    }


def _token_as_data(started: StartedNode) -> dict[str, object]:
    token = started.token
    if token is None:
        return {"token_source": None, "token_fingerprint": None}
    return {"token_source": token.source, "token_fingerprint": token.fingerprint}


@contextmanager
def _stopped_at_the_end(*, only_if: bool, drain_s: float) -> Iterator[list[NodeRecord]]:
    """The nodes that are put into the list are stopped at the end, also when this process is told to end."""
    from rlinf_scheduler.ray_backend.this_node import drain_node, stop_node  # noqa: PLC0415 - takes a while to load

    running: list[NodeRecord] = []
    if not only_if:
        yield running
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield running
    except SystemExit as told:
        if told.code == 128 + signal.SIGTERM and drain_s:
            for record in running:
                drain_node(record, drain_s)
        raise
    finally:
        # Who says it twice waits all the same: nothing is to be left.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for record in running:
            stop_node(record)


def _wait_for_end(record: NodeRecord) -> None:
    """Wait until the node ends by itself, which it is not meant to."""
    from rlinf_scheduler.proc import held, wait_for_ends  # noqa: PLC0415 - takes a while to load

    with held(process for process in record.processes if process.name == "raylet") as descriptors:
        wait_for_ends(descriptors.values(), None)
    typer.echo(f"{record} has ended by itself; its log: {record.folder}/ray/session_latest/logs", err=True)
    raise typer.Exit(ANSWER_IS_NO)
