"""What the journal of a durable channel says to the process that is to hold the channel now."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from typing import NamedTuple

import msgspec

from rlinf_scheduler.channel.journal import Journal
from rlinf_scheduler.channel.journal_records import JournaledCommit, LoadedSnapshot, load_snapshot
from rlinf_scheduler.channel.spec import ChannelSpec, max_bytes_of
from rlinf_scheduler.comm.disk import Disk
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.errors import ChannelJournalError
from rlinf_scheduler.record_log import Record

# To be raised when the queues decide otherwise of what clients said, or records change.
RULES = 4
# The lock of a process that is being killed is free after a moment.
LOCK_S = 2.0
AGAIN_S = 0.05


class FoundCommit(NamedTuple):
    """A turn of the channel before, and the frames of all that came in it."""

    commit: JournaledCommit
    frames: list[Buffer]


@dataclass(slots=True)
class FoundJournal:
    """The contents of a journal.

    Attributes:
        is_there: there is one.
        snapshot: what it was written whole with; None if that was nothing.
        commits: what has happened since, each with its frames, read as it is taken: it may be more than memory holds.
    """

    spec: ChannelSpec
    is_there: bool = False
    snapshot: LoadedSnapshot | None = None
    commits: Iterator[FoundCommit] = field(default_factory=lambda: iter(()))


def open_journal(spec: ChannelSpec, disk: Disk) -> Journal:
    """Open the journal of a channel.

    Raises:
        ChannelJournalError: a process that lives holds it, or the folder cannot be used.
    """
    until = time.monotonic() + LOCK_S
    while True:
        try:
            return Journal(spec.durable, spec.name, spec.survives, disk)
        except ChannelJournalError as error:
            if error.__cause__ is None or not isinstance(error.__cause__, BlockingIOError):
                raise
            if time.monotonic() >= until:
                raise
            time.sleep(AGAIN_S)


def read_journal(journal: Journal, spec: ChannelSpec) -> FoundJournal:
    """Read how a journal begins: which channel it is of, and what it was written whole with.

    Raises:
        ChannelJournalError: it is damaged, of another channel, or written by another version of this library; that may
            show only when its turns are taken.
    """
    if spec.restore and journal.exists:
        raise journal.damaged("is there already: a checkpoint is restored into a channel that is new")
    spec = msgspec.structs.replace(spec, restore="")
    if not journal.exists:
        # A share of this machine's memory is fixed now: it decides who waits, and must not change.
        return FoundJournal(msgspec.structs.replace(spec, max_bytes=max_bytes_of(spec)))
    records = journal.read()
    spec = _checked(journal, next(records), spec)
    snapshot = next(records)
    try:
        loaded = load_snapshot(snapshot) if snapshot.head else None
        return FoundJournal(spec, True, loaded, _commits(journal, records))
    except msgspec.MsgspecError as error:
        raise journal.damaged(f"cannot be read: {error}") from error


def _commits(journal: Journal, records: Iterator[Record]) -> Iterator[FoundCommit]:
    for record in records:
        try:
            commit = msgspec.msgpack.decode(record.head, type=JournaledCommit)
        except msgspec.MsgspecError as error:
            raise journal.damaged(f"cannot be read: {error}") from error
        yield FoundCommit(commit, commit.frames_of(record))


def _checked(journal: Journal, header: Record, spec: ChannelSpec) -> ChannelSpec:
    try:
        version, raw = msgspec.msgpack.decode(header.head, type=tuple[str, msgspec.Raw])
        # What has happened is to follow by the same rules again.
        if version != _version():
            problem = f"was written by version {version} of this library, and this is {_version()}"
            # What those saved is not read any more, either.
            too_old = version.endswith(("rules 1", "rules 2"))
            what_to_do = "save what it holds with that one, and restore it with this one"
            raise journal.damaged(
                f"{problem}; {'let what it holds be taken with that one' if too_old else what_to_do}"
            )
        known = msgspec.msgpack.decode(raw, type=ChannelSpec)
    except msgspec.MsgspecError as error:
        raise journal.damaged("is not the journal of a channel of this version") from error
    if spec.max_bytes is None:
        spec = msgspec.structs.replace(spec, max_bytes=known.max_bytes)
    differences = known.differences(spec)
    if differences:
        raise journal.damaged(f"is of a channel that was created with {differences}")
    return spec


def header_of(spec: ChannelSpec) -> bytes:
    """Return the header of a journal."""
    return msgspec.msgpack.encode((_version(), spec))


def _version() -> str:
    try:
        version = metadata.version("rlinf-scheduler")
    except metadata.PackageNotFoundError:
        version = "unknown"
    return f"{version}, rules {RULES}"
