"""The channel as its users hold it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import ClassVar, Protocol, TypedDict

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.access import Getting, OfServer, Putting
from rlinf_scheduler.channel.admission import Admitting
from rlinf_scheduler.channel.answering import Answering
from rlinf_scheduler.channel.arguments import (
    DEFAULT_QUEUE,
    checked_optional_count,
    checked_queue_name,
    checked_timeout,
    or_forever,
)
from rlinf_scheduler.channel.asking import Questions
from rlinf_scheduler.channel.batches import Batching
from rlinf_scheduler.channel.checkpoint import Restorable, file_to_restore
from rlinf_scheduler.channel.connection import ChannelConnection
from rlinf_scheduler.channel.deadlines import CONNECT_TIMEOUT_S, SAVE_TIMEOUT_S, SUCCESSOR_S, Survives
from rlinf_scheduler.channel.inspecting import Inspecting
from rlinf_scheduler.channel.lease import Lease
from rlinf_scheduler.channel.operation import ANSWER_S
from rlinf_scheduler.channel.shard import Sharding
from rlinf_scheduler.channel.spec import (
    ChannelRef,
    ChannelSpec,
    address_of,
    channels_of,
    checked_device_items,
    checked_durable,
    checked_holds,
    checked_max_bytes,
    checked_maxsize,
    checked_name,
    checked_place,
    checked_producers,
    checked_stall,
    checked_successor,
    group_ranks,
    inherited_channel,
    unheld_channels,
)
from rlinf_scheduler.channel.starting import StartChannel, Starter, StartingChannel, start_or_find
from rlinf_scheduler.channel.subscription import Subscribing
from rlinf_scheduler.checks import explains_calls
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import (
    ChannelArgumentError,
    ChannelError,
    ChannelLost,
    ChannelNotFound,
    CommError,
    PeerDied,
    PeerNotFound,
)
from rlinf_scheduler.queueing.item import QueueName
from rlinf_scheduler.rooms import of_room
from rlinf_scheduler.session import Session, SideBySide, current_session
from rlinf_scheduler.session.membership import GroupMembers, GroupMembership
from rlinf_scheduler.wording import did_you_mean, list_names

DELETE_TIMEOUT_S = 60.0


class HasMembers(Protocol):
    """A group of workers."""

    @property
    def members(self) -> GroupMembers:
        """The ranks that it has."""


@explains_calls
class Channel(Putting, Getting, Batching, Sharding, Questions, Answering, Admitting, Subscribing, Inspecting):
    """A set of named FIFO queues that any worker and the driver put into and get from.

    Use `Channel.create` and `Channel.connect`. A channel can be sent to another process, as an argument or
    as an item; there it connects by itself when it is first used.

    Operations that take `async_op` wait for their end and return the result, or with `async_op=True` return a
    handle at once (`wait(timeout_s)`, `await`, `done()`, `then(f)`, `cancel()`). Either way, puts of one
    process to one queue keep their order, and getters of a queue are served in the order in which they
    came. An asynchronous put takes the item as it is during the call. An asynchronous get whose handle is
    dropped gives up its place in line, and gives back the item if it has one.

    `timeout_s` bounds an operation, in seconds; None waits as long as it takes. An operation that raises
    ChannelTimeout has put or taken nothing; only what became of a put that raises its subclass ChannelUnanswered
    is not known. `key=` is another name of `queue_name=`.

    Every operation raises ChannelLost when the process that holds the channel is gone, and
    ChannelArgumentError for arguments that make no sense.
    """

    _of_server: ClassVar[OfServer] = (("producer", "counted producers"), ("save", "checkpoints"))
    # What makes a channel inside a process, set by the class that is one (`local.py`), which stands above this one.
    _make_local: ClassVar[Callable[[ChannelSpec], Channel]]

    @classmethod
    def create(
        cls,
        name: str,
        maxsize: int = 0,
        group_affinity: str | bool | None = None,
        group_rank_affinity: int | None = None,
        *,
        max_bytes: int | None = None,
        producers: int | str | HasMembers | None = None,
        successor_s: float = SUCCESSOR_S,
        max_attempts: int | None = None,
        max_leased: int | None = None,
        restore: Restorable | None = None,
        own_process: bool | None = None,
        holds: str | None = None,
        durable: str | os.PathLike[str] | None = None,
        survives: Survives = "machine",
        stall_after_s: float | None = None,
        device_items: bool = False,
        priority_wait_s: float | None = None,
        node_rank: int | None = None,
        distributed: bool = False,
        local: bool = False,
        exist_ok: bool = False,
        disable_distributed_log: bool = True,
    ) -> Channel:
        """Make a channel, whose address is `name:0`; with `local`, one inside this process.

        In a block of `cluster.starting()` it returns at once; what is done with the channel waits until it is there.

        Args:
            name: its name in the cluster.
            maxsize: how many items each of its queues holds before puts wait; 0 is unbounded.
            group_affinity: the worker group on whose node and device it is held; by default the caller's own
                (node 0 from the driver). True or False in its place is `distributed`, and `node_rank` follows.
            group_rank_affinity: the rank in that group; by default the caller's own, or 0 in another group.
            max_bytes: how many bytes all its queues hold before puts wait; 0 is unbounded, None a quarter of the memory
                of the machine that holds it. They are the `nbytes` of arrays and tensors, and the pickle of what has
                none, or less than its pickle. An item that is larger is taken where nothing else is held, and what
                somebody waits for does not wait for what other queues hold.
            producers: how many there will be (see `producer`); the channel ends when the last of them is done. Or a
                group, or its name: its ranks are the producers, those that it has when it is resized.
            successor_s: how long a producer that failed or died may be replaced before it counts as done; likewise the
                last member of a subscription, which is gone then.
            max_attempts: how often an item is given out on lease (see `lease`) before it is a dead letter; None: any
                number of times.
            max_leased: how many items one process may have on lease before its further leases wait, and others are
                served; a batch may exceed it. None: any number.
            restore: what it holds in the beginning: the file of a `save`, read by the process that holds it, or what
                `Cluster.load` returned. What was on lease is given out again, in order; what was acknowledged is not
                there. None, or a job that has no checkpoint yet: nothing.
            own_process: whether the process that holds it holds no other channel; None: what `channel_process` in the
                cluster's config says, which is that channels of a node share processes.
            holds: where large items of other machines' producers are. "node": they stay there, in the hands of a
                process of that machine, go straight to whoever gets them, and are lost with that machine. "channel":
                they go to the process that holds the channel, and from there to whoever gets them. None: "node", or
                "channel" of one that is durable.
            durable: a folder on the node that holds the channel, for its journal: then it survives the end of its
                process with all that was accepted, and whoever uses it goes on by itself. Where there is a journal of
                this channel already, the channel has what that knows. It has a process of its own.
            survives: what a durable channel is to survive. "machine": an operation is answered when it is on the disk.
                "process": when the operating system has it, which is faster, and lost with the machine's power.
            stall_after_s: after how many seconds the event `Stalled` tells of an operation that waits, and why; None:
                never.
            device_items: whether tensors on a device stay there, for getters that have the same device: an item with
                at least 64 KiB of them is copied on the device by `put`, and by `get`, and never through host memory.
                Such items are lost with the end of the process that put them (`ItemsLost`). Getters elsewhere get them
                through host memory. All items of a producer do that while what it has put keeps too much of the device
                (`RLINF_DEVICE_POOL_MIB`), or where the channel's process is on another machine.
            priority_wait_s: for how many seconds an item is passed over by those of a higher priority: one that has
                been in its queue for so long is next, the oldest first, whatever comes. None: a higher one always comes
                first.
            node_rank: the node whose process holds it, instead of one beside a worker.
            distributed: that its items' bytes stay on their node until somebody gets them, which is how it is anyhow
                (see `holds`); accepted, and without effect.
            local: no process holds it, and it needs no cluster: each process that has it has queues of its own, which
                begin empty, and in which items are the objects that were put (see `LocalChannel`). It goes with
                `maxsize` alone.
            exist_ok: if there is a channel of that name that was created with the same options, return that one. So all
                ranks of a group may create it.
            disable_distributed_log: accepted, and without effect: a channel's process writes no log of items.

        A worker that took the place of one that died gets the channel that that one created, as it is now.

        Raises:
            ChannelExists: the name is taken; or the worker whose place this one took had created it otherwise.
            ChannelJournalError: a living process holds the channel of that folder; or its journal is damaged, or of a
                channel that was created otherwise.
            ChannelError: the worker to be beside is not there, or no process starts.
            CheckpointError: what it is restored from cannot be read, or breaks its bounds.
        """
        del disable_distributed_log
        if local:
            options = {
                "group_affinity": group_affinity or None,
                "group_rank_affinity": group_rank_affinity,
                "max_bytes": max_bytes,
                "producers": producers,
                "max_attempts": max_attempts,
                "max_leased": max_leased,
                "restore": restore,
                "own_process": own_process,
                "holds": holds,
                "durable": durable,
                "stall_after_s": stall_after_s,
                "device_items": device_items or None,
                "priority_wait_s": priority_wait_s,
                "distributed": distributed or None,
            }
            return cls._create_local(name, maxsize, options)
        num_producers, producer_group = checked_producers(checked_name(name), producers)
        spec = ChannelSpec(
            name,
            checked_maxsize(name, maxsize),
            max_bytes=checked_max_bytes(name, max_bytes),
            producers=num_producers,
            producer_group=producer_group,
            successor_s=checked_successor(name, successor_s),
            max_attempts=checked_optional_count(name, "max_attempts", max_attempts),
            max_leased=checked_optional_count(name, "max_leased", max_leased),
            restore=file_to_restore(restore, name),
            holds=checked_holds(name, holds, durable=durable is not None),
            stall_after_s=checked_stall(name, stall_after_s),
            device_items=checked_device_items(name, device_items, durable=durable is not None),
            priority_wait_s=checked_timeout(name, priority_wait_s, "priority_wait_s"),
            **checked_durable(name, durable, survives, own_process),
        )
        session = current_session()
        spec = spec.made_by(session.name, session.messenger.endpoint.process_id)
        inherited = inherited_channel(session, spec)
        if inherited is not None:
            return cls(inherited)
        own_process = True if spec.durable else own_process
        wanted = StartChannel(
            spec,
            *checked_place(name, group_affinity, group_rank_affinity, node_rank),
            own_process=own_process,
        )
        starter, block = session.service(Starter), session.service(SideBySide).block
        if exist_ok:
            existing = start_or_find(session, starter, wanted)
            return cls(existing)
        if block is None:
            return cls(ChannelRef(spec, starter.start(wanted)))
        started: Promise[Endpoint] = Promise()
        starter.begin(wanted, started)
        block.add(started)
        return cls(StartingChannel(spec, started))

    @classmethod
    def _create_local(cls, name: str, maxsize: int, options: Mapping[str, object]) -> Channel:
        given = [option for option, value in options.items() if value is not None]
        if given:
            problem = (
                f"local=True goes with maxsize alone; {', '.join(given)} is for channels that a process holds"
            )
            raise ChannelArgumentError(str(name), problem)
        return cls._make_local(ChannelSpec(checked_name(name), checked_maxsize(name, maxsize)))

    @property
    def is_local(self) -> bool:
        """Whether it is one inside a process, which others do not share (see `create`)."""
        return False

    @classmethod
    def connect(cls, name: str, timeout_s: float | None = CONNECT_TIMEOUT_S) -> Channel:
        """Return the channel `name`, as soon as somebody has created it.

        Args:
            name: its name in the cluster.
            timeout_s: how long to wait for that, in seconds; None: as long as it takes.

        Raises:
            ChannelNotFound: nobody created it within `timeout_s` seconds.
            ChannelLost: it was there, and its process is gone.
        """
        limit_s = checked_timeout(name, timeout_s)
        session = current_session()
        try:
            address = address_of(checked_name(name))
            look_up = partial(session.directory.lookup, address, or_forever(limit_s))
            entry = look_up()
        except PeerNotFound as error:
            waited = f" within {error.waited_s:.1f} s" if limit_s != 0 else ""
            problem = f"nobody created it{waited}; {_what_there_is(session, name)}"
            raise ChannelNotFound(name, problem) from error
        except PeerDied as error:
            raise ChannelLost(name, str(error)) from error
        return cls(ChannelRef.from_entry(name, entry))

    def end(
        self,
        queue_name: QueueName = DEFAULT_QUEUE,
        timeout_s: float | None = None,
        *,
        key: QueueName | None = None,
    ) -> None:
        """Say that nothing will be put into a queue any more, once this process's puts are over.

        What it holds is delivered, what is left of a batch as an incomplete one; after that, and for puts at once,
        ChannelClosed is raised, and iterating ends. Puts of other processes that wait for room still enter. A queue
        stays ended as long as there is the channel; of queues that are empty, the latest 65,536 ends are remembered.

        Args:
            queue_name: the queue.
            timeout_s: how long puts of this process may take that still wait for room, in seconds.
            key: another name of `queue_name`.

        Raises:
            ChannelTimeout: they took longer; the queue has not ended.
            ChannelUnanswered: the channel's process did not answer within 5 s; the queue may have ended or not.
        """
        queue = checked_queue_name(self._name, queue_name, key)
        connection = self._connection()
        connection.requests.finish_puts("end", checked_timeout(self._name, timeout_s))
        connection.requests.ask(control_wire.EndQueue(queue), control_wire.Done)

    def flush(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> None:
        """Let batches take what a queue holds now, whether it reaches their weight or not; an incomplete one, then.

        Raises:
            ChannelTimeout, ChannelUnanswered: as of `end`.
        """
        queue = checked_queue_name(self._name, queue_name, key)
        connection = self._connection()
        connection.requests.finish_puts("flush", ANSWER_S)
        connection.requests.ask(control_wire.Flush(queue), control_wire.Done)

    def producer(self) -> Producer:
        """Be one of the channel's `producers` for the time of a `with` block.

        The channel ends, as if each queue were ended, when all of them have left their blocks. Leaving one waits for
        this process's puts. Who leaves by an exception, or dies, may be replaced for `successor_s` seconds: by another
        thread or process that enters such a block, first of all one of the same name (`rollout:3`).

            with channel.producer():
                for item in items:
                    channel.put(item)
        """
        return Producer(self._connection(), current_session())

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        acknowledge: Lease | Iterable[Lease] = (),
        timeout_s: float | None = SAVE_TIMEOUT_S,
    ) -> None:
        """Write what the channel holds into a file, while everybody goes on; `Channel.create(restore=path)` reads it.

        It has all items, those on lease too, and what the channel counts: everything that was put and not acknowledged,
        or taken by a plain get; and subscriptions, with what nobody has read there. It has no questions (`ask`), and no
        puts that wait for room. Nobody ever sees a file that is not whole: the one before stays until then.

        The channel's process writes it, so a path must mean the same where that runs. To save several channels, or a
        state that belongs to it, use `cluster.save`.

        Args:
            path: the file.
            acknowledge: leases of this process that are done with in the file; they are acknowledged once it is there.
            timeout_s: how long it may take, in seconds; None: as long as it takes.

        Raises:
            CheckpointError: it cannot be written, or somebody else writes it now.
            LeaseExpired: a lease to be acknowledged is over; then there is no file, or there is one in which its items
                are done with.
            ChannelUnanswered: it took longer; it may be written yet.
        """
        of_room("durable.saving:save_channel")(self, path, acknowledge, timeout_s)

    def close(self) -> None:
        """Refuse puts from now on, waiting ones too; getters take what is there, then get ChannelClosed.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s; it may be closed or not.
        """
        self._connection().requests.ask(control_wire.Close(), control_wire.Done)

    def delete(self, timeout_s: float | None = DELETE_TIMEOUT_S) -> None:
        """Close the channel, drop what it holds, and free its name; its process ends when it has no other.

        What waits fails, with ChannelClosed or ChannelLost; later operations raise ChannelLost. To lose
        nothing, `close` it and take what is there first.

        Args:
            timeout_s: how long that may take, in seconds; None: as long as it takes.

        Raises:
            ChannelUnanswered: the channel's process did not answer in time.
        """
        limit_s = or_forever(checked_timeout(self._name, timeout_s))
        self._connection().requests.ask(control_wire.Delete(), timeout_s=limit_s)

    def __reduce__(self) -> tuple[type[Channel], tuple[ChannelRef]]:
        return Channel, (self._ref,)

    def __repr__(self) -> str:
        # What it holds is one question away; a repr asks nobody and moves nothing.
        return f"<Channel '{self._name}' maxsize={self.maxsize}>"


def _what_there_is(session: Session, name: str) -> str:
    try:
        if name in unheld_channels(session):
            return (
                "its process is gone, and what it holds is in its journal: whoever creates it again holds it"
            )
        known = channels_of(session)
    except CommError as error:
        return f"what there is is not known: {error}"
    hint = did_you_mean(name, known)
    there = f"there are {list_names(known)}" if known else "there is no channel"
    return f"{there}; {hint}" if hint else there


_next_number = itertools.count(1).__next__


class Producer:
    """A place among the producers of a channel that counts them; left as done when the block ends without an error.

    Whoever is interrupted, also on the way in or out, drops the object, and so leaves the place as one who failed.
    """

    def __init__(self, connection: ChannelConnection, session: Session) -> None:
        self._connection = connection
        self._session = session
        self._number = _next_number()
        self._is_in = False

    def __enter__(self) -> Producer:
        """Take a place.

        Raises:
            ChannelArgumentError: the channel does not count its producers, or all have come; or this process is none of
                the ranks that they are.
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        self._is_in = True
        joined = self._connection.requests.ask(self._join(), control_wire.Done)
        if joined.problem:
            raise ChannelArgumentError(self._connection.ref.spec.name, joined.problem)
        return self

    def _join(self) -> control_wire.Join:
        session, place = self._session, self._session.fact(GroupMembership)
        if place is None or place.group != self._connection.ref.spec.producer_group:
            return control_wire.Join(self._number, session.name)
        members = group_ranks(session.members.newest(place.members))
        return control_wire.Join(self._number, f"{place.group}:{place.rank}", members)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._connection.requests.finish_puts("producer", None)
            self._connection.requests.ask(control_wire.Leave(self._number, False))
            self._is_in = False
            return
        with suppress(ChannelError):  # what has failed is more important
            self._connection.requests.ask(control_wire.Leave(self._number, True))

    def __del__(self) -> None:
        if self._is_in:
            with suppress(CommError):  # a forked child has none of its parent's places
                self._connection.requests.tell(control_wire.Leave(self._number, True))


class ChannelOptions(TypedDict, total=False):
    """What `Channel.create` takes by name, for functions that pass it on; each may be left out."""

    max_bytes: int | None
    producers: int | str | HasMembers | None
    successor_s: float
    max_attempts: int | None
    max_leased: int | None
    restore: Restorable | None
    own_process: bool | None
    holds: str | None
    durable: str | os.PathLike[str] | None
    survives: Survives
    stall_after_s: float | None
    device_items: bool
    priority_wait_s: float | None
    node_rank: int | None
    distributed: bool
    local: bool
    exist_ok: bool
