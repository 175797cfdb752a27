"""How a channel gets a process that holds it: whoever can start processes is asked for one."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.spec import KIND, ChannelRef, ChannelSpec
from rlinf_scheduler.comm.directory import Entry, ranks_text
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.peer import Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import ChannelError, ChannelExists, CommError
from rlinf_scheduler.session import Session
from rlinf_scheduler.wording import did_you_mean, list_names

# Of the job's home.
START_CHANNEL = "job.start_channel"
CHANNEL_STOPPED = "job.channel_stopped"
FIND_HOLDER = "job.find_holder"
# Of a process that holds channels.
HOLD_CHANNEL = "channels.hold"
# How long such a process may take to start, and to take a channel when it runs.
START_TIMEOUT_S = 120.0
HOLD_TIMEOUT_S = 30.0
# One that is to hold what is in a file reads that first.
RESTORE_TIMEOUT_S = 600.0
# And one that is durable, which may have much to read.
RECOVER_TIMEOUT_S = 600.0


class StartChannel(msgspec.Struct, frozen=True, array_like=True):
    """A channel is to be held by a process near a worker; the answer is how that process is reached.

    Attributes:
        spec: the channel.
        group: the group of the worker whose node and device the channel is near; None for that of whoever asks.
        rank: that worker's rank; None for that of whoever asks, or 0 in another group.
        node_rank: the node that it is to be on, instead of beside a worker; None for none.
        own_process: whether the process is to hold no other channel; None for what the cluster's config says.
    """

    spec: ChannelSpec
    group: str | None = None
    rank: int | None = None
    node_rank: int | None = None
    own_process: bool | None = None


class HoldChannel(msgspec.Struct, frozen=True, array_like=True):
    """Hold a channel -> its epoch, when it is known; 0 of one that is not durable.

    Attributes:
        placement: the place that it is near, pickled, for the directory.
    """

    spec: ChannelSpec
    placement: bytes


class ChannelStopped(msgspec.Struct, frozen=True, array_like=True):
    """A notice to the job's home: this process does not hold the channel any more."""

    channel_id: str


def check_group(session: Session, channel: str, group: str, rank: int) -> None:
    """Make sure that there is a worker for a channel to be beside, or will be.

    Raises:
        ChannelError: there is no such group, or it has no such rank.
    """
    groups = session.directory.group_ranks()
    ranks = groups.get(group)
    if ranks is None:
        there = f"there are {list_names(groups)}" if groups else "none was launched"
        parts = f"there is no group '{group}' of workers: {there}", did_you_mean(group, groups)
        raise ChannelError(channel, "; ".join(filter(None, parts)))
    if rank not in ranks:
        raise ChannelError(channel, f"group '{group}' has {ranks_text(ranks)}, not {rank}")


class Starter:
    """Finds the processes that hold channels. This one asks the job's home for them.

    A session that can start them itself, or holds channels in its own process, provides another.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def begin(self, wanted: StartChannel, started: Promise[Endpoint]) -> None:
        """Have a channel held; does not wait for it.

        Args:
            wanted: the channel.
            started: to be completed with how its process is reached; cancelled before that, the channel goes again.

        Raises (some only in the promise):
            ChannelExists: the name is taken.
            ChannelError: the worker to be beside is not there, or the process did not start.
            CheckpointError: what it is to hold cannot be read, or breaks its bounds.
        """
        asked = self._session.messenger.request(
            self._session.home,
            START_CHANNEL,
            wanted,
            timeout_s=2 * START_TIMEOUT_S + (RESTORE_TIMEOUT_S if wanted.spec.restore else 0),
            reply_type=Endpoint,
        )

        def pass_on(reply: Promise[Reply]) -> None:
            if reply.cancelled():
                return
            error = reply.exception(0)
            if isinstance(error, CommError):
                failure = ChannelError(wanted.spec.name, f"the driver did not start it: {error}")
                failure.__cause__ = error
                error = failure
            if error is not None:
                started.set_exception(error)
            else:
                started.set_result(reply.result(0).head)

        started.add_done_callback(lambda _: asked.cancel())
        asked.add_done_callback(pass_on)

    def find_holder(self, found: Promise[Endpoint]) -> None:
        """Find the process that holds items of this process's node, or have one started; does not wait for it.

        Args:
            found: to be completed with how it is reached.

        Raises (only in the promise):
            CommError: nobody says which it is, or it did not start.
        """
        asked = self._session.messenger.request(
            self._session.home, FIND_HOLDER, None, timeout_s=2 * START_TIMEOUT_S, reply_type=Endpoint
        )

        asked.add_done_callback(lambda reply: found.set_from(lambda: reply.result(0).head))

    def start(self, wanted: StartChannel) -> Endpoint:
        """As `begin`, and wait for it; interrupted, the channel goes again."""
        started: Promise[Endpoint] = Promise()
        try:
            self._hand_over(wanted, started)
            return wait_for_start(wanted.spec, started)
        except BaseException:
            if not started.cancel() and started.exception(0) is None:
                self._delete(wanted.spec, started.result(0))  # it came at the last moment
            raise

    def _hand_over(self, wanted: StartChannel, started: Promise[Endpoint]) -> None:
        """As `begin`; it may wait for what the channel depends on."""
        self.begin(wanted, started)

    def _delete(self, spec: ChannelSpec, endpoint: Endpoint) -> None:
        """Delete a channel that nobody knows of; does not wait for it. One that is durable may be older: it stays."""
        if spec.durable:
            return
        service = wire.service(spec.channel_id, wire.CONTROL)
        self._session.messenger.request(
            endpoint, service, control_wire.Delete(), timeout_s=HOLD_TIMEOUT_S, reply_type=None
        )


@dataclass(frozen=True, slots=True)
class StartingChannel:
    """A channel whose process may not hold it yet.

    Attributes:
        started: how its process is reached, once it does.
    """

    spec: ChannelSpec
    started: Promise[Endpoint]


def wait_for_start(spec: ChannelSpec, started: Promise[Endpoint]) -> Endpoint:
    """How a channel's process is reached, once it holds it.

    Raises:
        ChannelError, CheckpointError: what `started` failed with, or nobody says what became of it.
    """
    limit_s = 2 * START_TIMEOUT_S + (RESTORE_TIMEOUT_S if spec.restore else HOLD_TIMEOUT_S)
    if not started.wait(limit_s):
        raise ChannelError(spec.name, f"nobody says after {limit_s:.0f} s whether its process has started")
    return started.result(0)


def start_or_find(session: Session, starter: Starter, wanted: StartChannel) -> ChannelRef:
    """Have a channel held, or return the one of its name, if that was created with the same options.

    Raises:
        ChannelExists: it was created with others.
        ChannelError, CheckpointError: as of `Starter.begin`.
    """
    spec = wanted.spec
    found = _found(session, spec)
    if found is None:
        try:
            return ChannelRef(spec, starter.start(wanted))
        except ChannelExists:  # somebody else was faster
            found = _as_channel(session.directory.lookup(spec.address, HOLD_TIMEOUT_S), spec)
            if found is None:
                raise
    differences = found.spec.differences(spec, "holds", "durable", "survives")
    if differences:
        problem = f"it was created with {differences}: create it with the same options, or `connect` to it"
        raise ChannelExists(spec.name, problem)
    return found


def _found(session: Session, spec: ChannelSpec) -> ChannelRef | None:
    entries = session.directory.list(spec.address)
    entry = next((each for each in entries if each.name == spec.address), None)
    return None if entry is None else _as_channel(entry, spec)


def _as_channel(entry: Entry, spec: ChannelSpec) -> ChannelRef | None:
    """The channel of an entry; None where it is of something else."""
    return ChannelRef.from_entry(spec.name, entry) if KIND in entry.info else None
