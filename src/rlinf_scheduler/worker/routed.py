"""What a worker exchanges with a whole group: batches whose rows are shared among its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, overload

from rlinf_scheduler.checks import called_directly
from rlinf_scheduler.comm import AsyncHandle
from rlinf_scheduler.comm.directory import DEFAULT_TIMEOUT_S
from rlinf_scheduler.comm.handle import Later, Now, Seconds
from rlinf_scheduler.comm.transfer import checked_timeout
from rlinf_scheduler.errors import ClusterError, RouteError
from rlinf_scheduler.host.info import Role
from rlinf_scheduler.session.membership import GroupMembers, GroupMembership
from rlinf_scheduler.wording import counted
from rlinf_scheduler.worker.exchange import Exchange, _mailbox_of, _room_s

if TYPE_CHECKING:  # each is loaded by those who use it only
    from rlinf_scheduler.channel import Channel
    from rlinf_scheduler.routing import Route
    from rlinf_scheduler.routing.transfer import Count, Lane, Merge, Split

# Of the whole batch, or of each sender; a route says it for the receivers too.
Rows: TypeAlias = "SupportsIndex | Sequence[SupportsIndex] | Route | None"


class Routed(Exchange):
    """Sends batches to groups and receives them from groups; the part of `Worker` that is about rows."""

    _rlinf_role: Role

    @overload
    def send_to(
        self,
        group_name: str,
        batch: Any,
        rows: Rows = ...,
        async_op: Now = ...,
        timeout_s: Seconds = ...,
        *,
        channel: Channel | None = ...,
        tag: str = ...,
        split: Split | None = ...,
        count: Count | None = ...,
        wait_for_return: bool = ...,
    ) -> None: ...

    @overload
    def send_to(
        self,
        group_name: str,
        batch: Any,
        rows: Rows = ...,
        *,
        async_op: Later,
        timeout_s: Seconds = ...,
        channel: Channel | None = ...,
        tag: str = ...,
        split: Split | None = ...,
        count: Count | None = ...,
        wait_for_return: bool = ...,
    ) -> AsyncHandle[None]: ...

    @called_directly("Worker")
    def send_to(
        self,
        group_name: str,
        batch: Any,
        rows: Rows = None,
        async_op: bool = False,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        *,
        channel: Channel | None = None,
        tag: str = "",
        split: Split | None = None,
        count: Count | None = None,
        wait_for_return: bool = False,
    ) -> AsyncHandle[None] | None:
        """Send this rank's rows of a batch to a group, whose ranks call `recv_from`.

        All ranks of this group call it. Their rows together are one batch, in the order of their ranks, and the
        receivers share it: each row goes to exactly one of them. `plan_route` shows who gets what.

        Args:
            group_name: the receivers' group.
            batch: tensors, arrays and lists, in dicts, tuples and dataclasses; all have the same number of rows. They
                are sent as they are during this call, and not copied before.
            rows: how many rows the whole batch has, which the senders and the receivers share as evenly as it goes; or
                how many each sender has; or a `Route`. The receivers say the same. None: all senders have as many rows
                as this one, and the receivers share them evenly.
            async_op: return a handle at once.
            timeout_s: how long to wait, in seconds; None: as long as it takes.
            channel: a channel by which the rows go, in queues of their own; None: as messages from rank to rank.
            tag: what keeps one stream of batches to that group apart from others.
            split: a function that makes the parts of the batch, given their numbers of rows; None: `split_rows`.
            count: a function that says how many rows the batch has; None: `count_rows`.
            wait_for_return: if a receiver dies before it holds its rows, and is started again, send them to its
                successor; False: raise PeerDied.

        Raises:
            RouteError: the rows do not fit; nothing was sent.
            PeerNotFound: no such group at the deadline.
            PeerDied: receivers are gone, which the text names; the others have their rows.
            CommTimeout: receivers had no room at the deadline, likewise. Of a channel: ChannelTimeout.
        """
        from rlinf_scheduler.routing.transfer import counted_rows, even_route, send_batch  # noqa: PLC0415 - see above

        own, place, size, ranks = both_sides(self, group_name, timeout_s)
        if rows is None:
            rows_here = counted_rows(own, group_name, place, batch, count)
            route = even_route(own, size, group_name, len(ranks), place, rows_here)
        else:
            route = _route(own, size, own, group_name, rows, len(ranks))
        lane = _lane(self, route, channel, tag, timeout_s, wait_for_return, _room_s(async_op), ranks)
        what = _call("send_to", group_name, tag, channel)
        handle = send_batch(route, place, batch, lane, what, split=split, count=count, ranks=ranks)
        return handle if async_op else handle.wait()

    @overload
    def recv_from(
        self,
        group_name: str,
        rows: Rows = ...,
        *,
        async_op: Later,
        timeout_s: Seconds = ...,
        channel: Channel | None = ...,
        tag: str = ...,
        merge: Merge | None = ...,
        count: Count | None = ...,
        wait_for_return: bool = ...,
    ) -> AsyncHandle[Any]: ...

    @overload
    def recv_from(
        self,
        group_name: str,
        rows: Rows = ...,
        async_op: bool = ...,
        timeout_s: Seconds = ...,
        *,
        channel: Channel | None = ...,
        tag: str = ...,
        merge: Merge | None = ...,
        count: Count | None = ...,
        wait_for_return: bool = ...,
    ) -> Any: ...

    @called_directly("Worker")
    def recv_from(
        self,
        group_name: str,
        rows: Rows = None,
        async_op: bool = False,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        *,
        channel: Channel | None = None,
        tag: str = "",
        merge: Merge | None = None,
        count: Count | None = None,
        wait_for_return: bool = False,
    ) -> Any:
        """Receive this rank's rows of the next batch that a group sends to this one by `send_to`.

        They come in the order of the senders' ranks, and of their rows there: what is sent back by `send_to` with the
        same `rows` arrives where its row came from. A wait that times out, is cancelled or fails takes nothing.

        Args:
            group_name: the senders' group.
            rows: as of `send_to`, and the same as there.
            async_op: return a handle at once.
            timeout_s: how long to wait, in seconds; None: as long as it takes.
            channel: the channel by which the rows come, if the senders name one.
            tag: the senders'.
            merge: a function that makes one batch of the senders' parts; None: `merge_rows`, which copies once.
            count: a function that says how many rows a part has; None: `count_rows`, and with `merge` none is counted.
            wait_for_return: if a sender dies, and is started again, wait for what its successor sends; False: raise
                PeerDied.

        Returns:
            The batch; None where there are fewer rows than receivers, and none is this one's.

        Raises:
            RouteError: what came has other rows than it should have; the text says whose.
            PeerNotFound: no such group at the deadline.
            PeerDied: a sender is gone, which the text names, and nothing of it is left to receive.
            CommTimeout: a sender had sent nothing before the deadline, likewise. Of a channel: ChannelTimeout.
        """
        from rlinf_scheduler.routing.plan import plan_even  # noqa: PLC0415 - see above
        from rlinf_scheduler.routing.transfer import recv_batch  # noqa: PLC0415 - see above

        own, place, size, ranks = both_sides(self, group_name, timeout_s)
        if rows is None:
            route = plan_even(group_name, len(ranks), own, size)
        else:
            route = _route(own, size, group_name, own, rows, len(ranks))
        lane = _lane(self, route, channel, tag, timeout_s, wait_for_return, 0.0, ranks)
        what = _call("recv_from", group_name, tag, channel)
        handle = recv_batch(route, place, lane, what, scaled=rows is None, merge=merge, count=count)
        return handle if async_op else handle.wait()


def members_of(worker: Routed) -> GroupMembers:
    """The ranks of a worker's group now."""
    session, info = worker._rlinf_session, worker._rlinf_role.info
    place = None if session is None else session.fact(GroupMembership)
    if place is None:  # it is a rank of no group
        return GroupMembers(info.address.group, tuple(range(info.world_size)))
    return place.members


def both_sides(worker: Routed, group: str, timeout_s: float | None) -> tuple[str, int, int, Sequence[int]]:
    """A worker's group, its place there, how many ranks that has; and the numbers of another group's ranks.

    Raises:
        ClusterError: the worker is a rank of no group.
        RouteError: it has left its group.
    """
    from rlinf_scheduler.routing.transfer import RanksOfGroups  # noqa: PLC0415 - see above

    if worker._rlinf_session is None:
        raise ClusterError("this worker was constructed directly: launch its group to communicate")
    own, rank = members_of(worker), worker._rlinf_role.info.address.rank
    if rank not in own:
        raise RouteError(own.group, group, f"rank {rank} has left group '{own.group}'")
    ranks = worker._rlinf_session.service(RanksOfGroups).of(group, checked_timeout(timeout_s))
    return own.group, own.place_of(rank), own.world_size, ranks


def _route(own: str, size: int, source: str, target: str, rows: Any, others: int) -> Route:
    """The route that `rows` says, between a worker's own group, of so many ranks, and another one of so many."""
    from rlinf_scheduler.routing import Route, plan_route  # noqa: PLC0415 - see above

    if isinstance(rows, Route):
        if (rows.source, rows.target) != (source, target):
            raise RouteError(
                source, target, f"the route that was given is from '{rows.source}' to '{rows.target}'"
            )
        ours, name = (rows.sent, source) if source == own else (rows.received, target)
        if len(ours) != size:
            problem = f"the route has {counted(len(ours), 'rank')} of '{name}', which has {size}"
            raise RouteError(source, target, problem)
        return rows
    senders, receivers = (size, others) if source == own else (others, size)
    if not isinstance(rows, Sequence):
        return plan_route(source, senders, target, receivers, rows=rows)
    if len(rows) != senders:
        problem = f"rows= has {counted(len(rows), 'number')}, and '{source}' has {counted(senders, 'rank')}"
        raise RouteError(source, target, problem)
    return plan_route(source, rows, target, receivers)


def _lane(
    worker: Routed,
    route: Route,
    channel: Channel | None,
    tag: str,
    timeout_s: float | None,
    returns: bool,
    room_s: float,
    ranks: Sequence[int],
) -> Lane:
    from rlinf_scheduler.routing.transfer import ChannelLane, MessageLane, route_queue  # noqa: PLC0415 - see above

    if channel is not None:
        return ChannelLane(channel, partial(route_queue, route, tag), timeout_s)
    other = route.target if route.source == worker._rlinf_role.info.address.group else route.source
    return MessageLane(_mailbox_of(worker), other, ranks, tag, timeout_s, room_s, returns)


def _call(method: str, group: str, tag: str, channel: Channel | None) -> str:
    """A call as its caller would write it."""
    options = f", tag={tag!r}" if tag else ""
    return f"{method}({group!r}{options}{f', channel={channel.name!r}' if channel is not None else ''})"
