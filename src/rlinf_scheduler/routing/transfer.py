"""A batch on its way along a route: by messages from rank to rank, or by a channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from rlinf_scheduler.comm.directory import GROUPS, ranks_of
from rlinf_scheduler.comm.gathering import Gathered
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.errors import CommError, PeerNotFound, RouteError
from rlinf_scheduler.mailbox.mailing import joined
from rlinf_scheduler.queueing.item import QueueName
from rlinf_scheduler.routing.plan import Route, RowBlock
from rlinf_scheduler.routing.rows import count_rows, merge_rows, split_rows
from rlinf_scheduler.session import Session

if TYPE_CHECKING:  # each is loaded by those who use it only
    from rlinf_scheduler.channel import Channel
    from rlinf_scheduler.mailbox import Mailbox

Split = Callable[[Any, list[int]], Sequence[Any]]
Merge = Callable[[list[Any]], Any]
Count = Callable[[Any], int]


class Lane(Protocol):
    """What carries the parts of batches between the ranks of two groups."""

    def send(self, block: RowBlock, part: Any) -> AsyncHandle[None]:
        """Begin to send a part."""

    def recv(self, block: RowBlock) -> AsyncHandle[Any]:
        """Begin to receive a part."""


@dataclass(frozen=True, slots=True)
class MessageLane:
    """Messages from rank to rank, in an order of their own: `send` and `recv` of the same ranks are not in it.

    Attributes:
        mailbox: of this process.
        other: the group at the other end.
        ranks: the numbers of its ranks, by their places in a route.
        tag: what keeps one stream of batches between two groups apart from others.
        timeout_s: how long each part may take.
        room_s: how long this call may wait for shared memory.
        wait_for_return: go on with the successor of a rank that dies.
    """

    mailbox: Mailbox
    other: str
    ranks: Sequence[int]
    tag: str
    timeout_s: float | None
    room_s: float
    wait_for_return: bool

    def send(self, block: RowBlock, part: Any) -> AsyncHandle[None]:
        """Begin to send a part."""
        return self.mailbox.send(
            part,
            f"{self.other}:{self.ranks[block.receiver]}",
            timeout_s=self.timeout_s,
            wait_s=self.room_s,
            wait_for_return=self.wait_for_return,
            topic=f"route/{self.tag}",
        )

    def recv(self, block: RowBlock) -> AsyncHandle[Any]:
        """Begin to receive a part."""
        return self.mailbox.recv(
            f"{self.other}:{self.ranks[block.sender]}",
            timeout_s=self.timeout_s,
            wait_for_return=self.wait_for_return,
            topic=f"route/{self.tag}",
        )


@dataclass(frozen=True, slots=True)
class ChannelLane:
    """Queues of a channel, one for each pair of ranks.

    Attributes:
        channel: the channel.
        queue_of: names the queue of a pair.
        timeout_s: how long each part may take.
    """

    channel: Channel
    queue_of: Callable[[RowBlock], QueueName]
    timeout_s: float | None = None

    def send(self, block: RowBlock, part: Any) -> AsyncHandle[None]:
        """Begin to send a part."""
        queue = self.queue_of(block)
        return self.channel.put(part, block.rows, queue, async_op=True, timeout_s=self.timeout_s)

    def recv(self, block: RowBlock) -> AsyncHandle[Any]:
        """Begin to receive a part."""
        return self.channel.get(self.queue_of(block), async_op=True, timeout_s=self.timeout_s)


def route_queue(route: Route, tag: str, block: RowBlock) -> QueueName:
    """Return the name of the queue by which a channel carries what one rank sends to another."""
    return ("route", route.source, route.target, tag, block.sender, block.receiver)


def send_batch(
    route: Route,
    rank: int,
    batch: Any,
    lane: Lane,
    what: str,
    *,
    split: Split | None = None,
    count: Count | None = None,
    ranks: Sequence[int] = (),
) -> AsyncHandle[None]:
    """Begin to send a sender's batch along a route.

    Args:
        route: who gets which rows.
        rank: the sender's place in its group.
        batch: its rows.
        lane: what carries them.
        what: what goes on, as its caller would write it.
        split: makes the parts of the batch that have so many rows; None: `split_rows`.
        count: says how many rows the batch has; None: `count_rows`, or whatever `split` makes of it.
        ranks: the numbers of the receivers' ranks, by their places; none: their places.

    Raises:
        RouteError: the batch does not fit; nothing was sent.
    """
    blocks = route.sent_by(rank)
    if split is None or count is not None:
        route.check_sender(rank, counted_rows(route.source, route.target, rank, batch, count))
    sizes = [block.rows for block in blocks]
    parts = (split or split_rows)(batch, sizes) if sizes else ()
    if len(parts) != len(blocks):
        problem = f"split= has made {len(parts)} parts of {route.source}:{rank}'s batch, where {len(blocks)} are sent"
        raise RouteError(route.source, route.target, problem)
    handles: list[AsyncHandle[None]] = []
    try:
        for block, part in zip(blocks, parts, strict=True):
            handles.append(lane.send(block, part))
    except BaseException:
        for handle in handles:
            handle.cancel()
        raise

    def join(errors: list[BaseException | None]) -> BaseException | None:
        numbers = (ranks[block.receiver] if ranks else block.receiver for block in blocks)
        names = [f"{route.target}:{number}" for number in numbers]
        failed = {name: error for name, error in zip(names, errors, strict=True) if error is not None}
        if all(isinstance(error, CommError) for error in failed.values()):
            return joined("send", failed) if failed else None
        return next(error for error in failed.values() if not isinstance(error, CommError))

    return Gathered(handles, lambda _: None, what, join)


def recv_batch(
    route: Route,
    rank: int,
    lane: Lane,
    what: str,
    *,
    scaled: bool = False,
    merge: Merge | None = None,
    count: Count | None = None,
) -> AsyncHandle[Any]:
    """Begin to receive a receiver's rows of a batch; the handle's result is None where the route gives it none.

    Args:
        route: who sends which rows.
        rank: the receiver's place in its group.
        lane: what carries them.
        what: what goes on, as its caller would write it.
        scaled: there may be any multiple of the route's rows, the same of each block.
        merge: makes one batch of the parts, in the order of the senders; None: `merge_rows`.
        count: says how many rows a part has; None: `count_rows`, and nothing is counted where `merge` is given.
    """
    blocks = route.received_by(rank)

    def finish(parts: list[Any]) -> Any:
        if not parts:
            return None
        if merge is None or count is not None:
            _check_parts(route, blocks, [(count or count_rows)(part) for part in parts], scaled=scaled)
        return (merge or merge_rows)(parts)

    return Gathered([lane.recv(block) for block in blocks], finish, what)


def counted_rows(source: str, target: str, rank: int, batch: Any, count: Count | None) -> int:
    """Return how many rows a sender's batch has.

    Raises:
        RouteError: it has none that can be counted; the text says whose it is.
    """
    try:
        return (count or count_rows)(batch)
    except RouteError as error:
        problem = f"the batch of {source}:{rank}: {error.problem}; nothing was sent"
        raise RouteError(source, target, problem) from None


def _check_parts(route: Route, blocks: Sequence[RowBlock], rows: list[int], *, scaled: bool) -> None:
    scale = max(1, rows[0] // blocks[0].rows) if scaled else 1
    for block, number in zip(blocks, rows, strict=True):
        route.check_part(replace(block, start=block.start * scale, stop=block.stop * scale), number)


class RanksOfGroups:
    """The numbers of the ranks that the groups of a job have; a service of a session.

    It asks once for each, and again when the group was resized, or a process is gone that this one is connected to,
    such as the group's first rank: then a group of that name may have been launched again.
    """

    def __init__(self, session: Session) -> None:
        self._directory = session.directory
        self._messenger = session.messenger
        self._ranks: dict[str, Sequence[int]] = {}
        self._num_changes = 0
        session.messenger.on_peer_lost(self._forget)
        session.members.on_change.append(self._forget)

    def of(self, group: str, timeout_s: float) -> Sequence[int]:
        """Return the numbers of a group's ranks, as soon as its launch has begun.

        Raises:
            PeerNotFound: no group of that name was launched within `timeout_s` seconds.
            RouteError: it is a channel.
        """
        return self._ranks.get(group) or self._ask(group, timeout_s)

    def _forget(self, _changed: object) -> None:
        self._num_changes += 1
        self._ranks.clear()

    def _ask(self, group: str, timeout_s: float) -> Sequence[int]:
        num_changes, first = self._num_changes, None
        with suppress(CommError):  # while its first rank is not there, it is asked for each time
            # Before the ranks: when this one is gone, they are asked for again.
            first = self._directory.lookup(f"{group}:0", timeout_s=0.0)
        try:
            entry = self._directory.lookup(f"{GROUPS}{group}", timeout_s)
        except PeerNotFound as error:
            near = [name.removeprefix(GROUPS) for name in error.known]
            raise PeerNotFound(group, error.waited_s, near, error.why) from None
        ranks = ranks_of(entry)
        if not ranks:
            raise RouteError("", "", f"'{group}' is a channel, and no group: give it as channel=")
        if first is not None:
            self._messenger.connect(first.endpoint)
            self._ranks[group] = ranks
            if self._num_changes != num_changes:  # it may have been the first rank, or been resized
                self._ranks.pop(group, None)
        return ranks


def even_route(source: str, senders: int, target: str, receivers: int, rank: int, rows: int) -> Route:
    """Return the route on which every sender has as many rows as the one of that rank.

    Raises:
        RouteError: the receivers cannot share them evenly; nothing was sent.
    """
    total = rows * senders
    if total % receivers:
        problem = (
            f"{source}:{rank} has {rows} rows, so {senders} ranks have {total}, which {receivers} ranks of '{target}' "
            "cannot share evenly: say rows= on both sides, of the whole batch or of each sender; nothing was sent"
        )
        raise RouteError(source, target, problem)
    return Route(source, target, (rows,) * senders, (total // receivers,) * receivers)
