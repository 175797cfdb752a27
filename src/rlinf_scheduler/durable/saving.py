"""Taking checkpoints, as users do.

What is consistent about a cut over several channels: it has two *looks*. All channels are looked at a first time before
any of them is looked at the second time, and a channel's file has whatever it held at any moment from its first look to
its second one. There is a moment at which every channel is between its looks. So an item that a worker takes from one
channel, makes another one of, puts that into another channel, and acknowledges the first, is in one of the files, or
what was made of it is, or both are: whichever way items go, in circles too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.access import ChannelAccess
from rlinf_scheduler.channel.arguments import checked_timeout, or_forever
from rlinf_scheduler.channel.channel import Channel
from rlinf_scheduler.channel.checkpoint import checked_file
from rlinf_scheduler.channel.connection import ChannelConnection
from rlinf_scheduler.channel.lease import Lease
from rlinf_scheduler.channel.spec import check_host_items
from rlinf_scheduler.comm.codec import Encoded, encode
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.durable.checkpoint_files import JobFolder, PartNote
from rlinf_scheduler.errors import ChannelArgumentError, ChannelError, CheckpointError, CommError


def save_channel(
    channel: Channel,
    path: str | os.PathLike[str],
    acknowledge: Lease | Iterable[Lease],
    timeout_s: float | None,
) -> None:
    """Save one channel; see `Channel.save`."""
    leases = _leases(acknowledge)
    limit_s = or_forever(checked_timeout(channel.name, timeout_s))
    connection = channel._connection()
    _check_savable(connection)
    file = checked_file(path)
    message = control_wire.Save("", _done(leases, connection), file)
    _ask_all([connection], [message], [file], leases, limit_s)
    for lease in leases:
        lease.ack()


def save_job(
    path: str | os.PathLike[str],
    channels: Iterable[ChannelAccess],
    extra: Any,
    acknowledge: Lease | Iterable[Lease],
    timeout_s: float | None,
) -> None:
    """Save channels and a state in one cut; see `Cluster.save`."""
    leases, path = _leases(acknowledge), checked_file(path)
    connections = _connections_to(path, channels, leases)
    limit_s = or_forever(None if timeout_s is None else float(timeout_s))
    encoded = encode(extra)
    folder = JobFolder(path)
    try:
        _write(folder, connections, leases, encoded, limit_s)
    finally:
        folder.close()
    for lease in leases:
        lease.ack()


def _write(
    folder: JobFolder,
    connections: Sequence[ChannelConnection],
    leases: Sequence[Lease],
    extra: Encoded,
    limit_s: float,
) -> None:
    files = [folder.file_for(each.ref.spec.name, number) for number, each in enumerate(connections)]
    done = [_done(leases, connection) for connection in connections]
    # One look at a single channel is consistent.
    token = os.path.basename(files[0]) if len(files) > 1 else ""
    messages = [control_wire.Save(token, *each) for each in zip(done, files, strict=True)]
    try:
        if token:
            _ask_all(connections, [control_wire.Look(token, each) for each in done], files, leases, limit_s)
        saved = _ask_all(connections, messages, files, leases, limit_s)
    except BaseException:
        if token:
            _take_looks_back(connections, token)
        raise
    parts = [
        PartNote(connection.ref.spec.name, os.path.basename(file), each.num_items, each.size_bytes)
        for connection, file, each in zip(connections, files, saved, strict=True)
    ]
    folder.finish(parts, extra.frames())


def _take_looks_back(connections: Sequence[ChannelConnection], token: str) -> None:
    """Have no channel keep anything for a second look that does not come; who is not told keeps it for a while."""
    for connection in connections:
        with suppress(ChannelError, CommError):
            connection.requests.tell(control_wire.Forget(token))


def _ask_all(
    connections: Sequence[ChannelConnection],
    messages: Sequence[control_wire.Look | control_wire.Save],
    files: Sequence[str],
    leases: Sequence[Lease],
    limit_s: float,
) -> list[control_wire.Saved]:
    """Ask all channels at once, and wait for all of them."""
    asked: list[Promise[Any]] = [
        connection.requests.begin(message, control_wire.Saved, limit_s)
        for connection, message in zip(connections, messages, strict=True)
    ]
    out = []
    for connection, answer, file in zip(connections, asked, files, strict=True):
        saved: control_wire.Saved = connection.requests.answer_to(answer, "save", limit_s).head
        _check(saved, connection, file, leases)
        out.append(saved)
    return out


def _check(
    saved: control_wire.Saved, connection: ChannelConnection, path: str, leases: Iterable[Lease]
) -> None:
    if saved.generation:
        for lease in leases:
            if lease.is_of(connection) and lease.generation == saved.generation:
                raise lease.expired(saved.problem)
    if saved.problem:
        raise CheckpointError(path, f"channel '{connection.ref.spec.name}': {saved.problem}")


def _leases(acknowledge: Lease | Iterable[Lease]) -> list[Lease]:
    return [acknowledge] if isinstance(acknowledge, Lease) else list(acknowledge)


def _done(leases: Iterable[Lease], connection: ChannelConnection) -> list[int]:
    return [lease.generation for lease in leases if lease.is_of(connection)]


def _check_savable(connection: ChannelConnection) -> None:
    spec = connection.ref.spec
    check_host_items(spec.name, spec.device_items, "it cannot be saved")


def _connections_to(
    path: str, channels: Iterable[ChannelAccess], leases: Iterable[Lease]
) -> list[ChannelConnection]:
    """The connections to channels.

    Raises:
        CheckpointError: one of them is named twice, or is none.
        ChannelArgumentError: a lease is of none of them.
    """
    connections = []
    if isinstance(channels, ChannelAccess):  # to iterate it would be to take its items
        raise CheckpointError(path, f"`channels` is a list of them: [{channels!r}]")
    for channel in channels:
        # A subscription reaches a channel as well.
        if not isinstance(channel, Channel):
            raise CheckpointError(path, f"{channel!r} is no channel, and only channels are saved")
        connections.append(channel._connection())
        _check_savable(connections[-1])
    names = [connection.ref.spec.name for connection in connections]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise CheckpointError(path, f"channel '{twice}' is to be saved twice")
    for lease in leases:
        if not any(lease.is_of(connection) for connection in connections):
            there = ", ".join(f"'{name}'" for name in names) or "no channel"
            raise ChannelArgumentError(
                lease.channel_name, f"a lease of it is to be acknowledged, and {there} saved"
            )
    return connections
