"""Routing of batches between groups of different sizes, by RLinf's names; see `rlinf_scheduler.routing`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, Unpack

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm.gathering import Gathered
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.errors import RouteError
from rlinf_scheduler.routing import RowBlock, count_rows, merge_rows, plan_route, split_rows
from rlinf_scheduler.routing.transfer import (
    ChannelLane,
    RanksOfGroups,
    counted_rows,
    even_route,
    recv_batch,
    send_batch,
)
from rlinf_scheduler.session import current_or_none
from rlinf_scheduler.worker.routed import both_sides

if TYPE_CHECKING:
    from rlinf_scheduler.worker import Worker

# A group that nobody launches is told of after so long.
GROUP_TIMEOUT_S = 60.0

RouteKey = tuple[str, str, str, str, str, int | None, int | None]

infer_batch_size = count_rows
split_batch = split_rows
merge_batches = merge_rows


class CommMapper:
    """Which ranks of two groups exchange which rows of a batch that both share."""

    @staticmethod
    def build_channel_key(src_rank: int, dst_rank: int, extra: str) -> str:
        """Return the name of a queue from one rank to another.

        >>> CommMapper.build_channel_key(2, 1, "pipeline")
        '2_1_pipeline'
        """
        return f"{src_rank}_{dst_rank}_{extra}"

    @staticmethod
    def get_dst_ranks(
        batch_size: int, src_world_size: int, dst_world_size: int, src_rank: int
    ) -> list[tuple[int, int]]:
        """Return to whom a sender sends how many rows, in their order.

        >>> CommMapper.get_dst_ranks(12, 2, 3, src_rank=1)
        [(1, 2), (2, 4)]
        """
        _check_rank("source", src_rank, src_world_size)
        route = plan_route("source", src_world_size, "destination", dst_world_size, rows=batch_size)
        return [(block.receiver, block.rows) for block in route.sent_by(src_rank)]

    @staticmethod
    def get_src_ranks(
        batch_size: int, src_world_size: int, dst_world_size: int, dst_rank: int
    ) -> list[tuple[int, int]]:
        """Return from whom a receiver gets how many rows, in their order.

        >>> CommMapper.get_src_ranks(12, 2, 3, dst_rank=1)
        [(0, 2), (1, 2)]
        """
        _check_rank("destination", dst_rank, dst_world_size)
        route = plan_route("source", src_world_size, "destination", dst_world_size, rows=batch_size)
        return [(block.sender, block.rows) for block in route.received_by(dst_rank)]

    @staticmethod
    def decoupled_get_batch_size(
        batch_size: int, src_world_size: int, dst_world_size: int, queue_size: int = 0
    ) -> list[int]:
        """Return the rows of each message that a rank of the first group exchanges at once with any of the second.

        A message has the rows of one rank of the larger group. A rank of the smaller group has one for each rank of
        the other that falls to it, or `queue_size` of them.

        >>> CommMapper.decoupled_get_batch_size(32, 2, 8), CommMapper.decoupled_get_batch_size(32, 8, 2)
        ([4, 4, 4, 4], [4])
        """
        larger = max(src_world_size, dst_world_size)
        if batch_size % larger:
            problem = (
                f"{batch_size} rows cannot be shared evenly by {larger} ranks, as the decoupled form does"
            )
            raise RouteError("source", "destination", problem)
        most = max(1, dst_world_size // src_world_size)
        if queue_size > most:
            problem = f"a queue size of {queue_size} is more than the {most} messages that there are"
            raise RouteError("source", "destination", problem)
        number = queue_size if queue_size > 0 and dst_world_size > src_world_size else most
        return [batch_size // larger] * number


@dataclass(frozen=True)
class RouteEntry:
    """One message of a rank.

    Attributes:
        peer_rank: to whom, or from whom; None: the decoupled form's, with any rank.
        batch_size: its rows.
        key: its queue.
        batch_index: who sent it as which of its messages; of the decoupled form.
    """

    peer_rank: int | None
    batch_size: int
    key: RouteKey
    batch_index: str = ""


@dataclass(frozen=True)
class RoutePlan:
    """The messages that one rank sends or receives."""

    entries: list[RouteEntry]


class RoutedGroups(TypedDict):
    """Two groups, the stream between them, and the rows of the whole batch."""

    src_group_name: str
    dst_group_name: str
    src_world_size: int
    dst_world_size: int
    tag: str | None
    route_key: NotRequired[Any]
    batch_size: int


def split_channel_message(channel_message: str) -> tuple[int, int, str, str]:
    """Return who sent a message of the decoupled form, as which of its messages, in which phase and stream.

    >>> split_channel_message("3_0_train_rollout_results")
    (3, 0, 'train', 'rollout_results')

    Raises:
        ValueError: it is none.
    """
    sender, index, mode, tag = channel_message.split("_", 3)
    return int(sender), int(index), mode, tag


def build_route_channel_key(
    src_group_name: str,
    dst_group_name: str,
    src_rank: int | None,
    dst_rank: int | None,
    tag: str | None,
    route_key: Any = None,
) -> RouteKey:
    """Return the queue of what goes from one rank to another; None stands for any."""
    key = "" if route_key is None else route_key if isinstance(route_key, str) else repr(route_key)
    return "scheduler_route", src_group_name, dst_group_name, tag or "default", key, src_rank, dst_rank


build_send_key = build_route_channel_key


def build_send_plan(*, src_rank: int, **groups: Unpack[RoutedGroups]) -> RoutePlan:
    """Return what a sender sends to whom."""
    peers = CommMapper.get_dst_ranks(*_sizes(groups), src_rank)
    return RoutePlan([RouteEntry(peer, rows, _key(src_rank, peer, **groups)) for peer, rows in peers])


def build_recv_plan(*, dst_rank: int, **groups: Unpack[RoutedGroups]) -> RoutePlan:
    """Return what a receiver gets from whom."""
    peers = CommMapper.get_src_ranks(*_sizes(groups), dst_rank)
    return RoutePlan([RouteEntry(peer, rows, _key(peer, dst_rank, **groups)) for peer, rows in peers])


def decoupled_build_send_plan(
    *,
    src_rank: int | None,
    mode: str | None = None,
    tag_batch_router: list[str] | None = None,
    send_queue_size: int = 0,
    **groups: Unpack[RoutedGroups],
) -> RoutePlan:
    """Return the messages of a sender: to any receiver, or to those whose messages `tag_batch_router` has.

    Raises:
        RouteError: `tag_batch_router` has other than as many messages.
    """
    every = CommMapper.decoupled_get_batch_size(*_sizes(groups), send_queue_size)
    names = groups["src_group_name"], groups["dst_group_name"]
    if tag_batch_router is None:
        key = _key(None, None, **groups)
        own = [f"{src_rank or 0}_{place}_{mode}_{groups['tag']}" for place in range(len(every))]
        return RoutePlan([RouteEntry(None, every[place], key, name) for place, name in enumerate(own)])
    if len(tag_batch_router) != len(every):
        problem = f"{len(tag_batch_router)} messages wait for an answer of {len(every)} parts"
        raise RouteError(*names, problem)
    entries = []
    for rows, asked in zip(every, tag_batch_router, strict=True):
        asker, _, _, tag = split_channel_message(asked)
        key = build_route_channel_key(*names, None, asker, tag, groups.get("route_key"))
        entries.append(RouteEntry(asker, rows, key, asked))
    return RoutePlan(entries)


def decoupled_build_recv_plan(
    *, recv_rank: int | None, recv_queue_size: int = 0, **groups: Unpack[RoutedGroups]
) -> RoutePlan:
    """Return the messages of a receiver: those for it, or for anybody where `recv_rank` is None."""
    every = CommMapper.decoupled_get_batch_size(*_sizes(groups), recv_queue_size)
    key = _key(None, recv_rank, **groups)
    return RoutePlan([RouteEntry(None, rows, key) for rows in every])


def _sizes(groups: RoutedGroups) -> tuple[int, int, int]:
    odd = (groups.keys() | {"route_key"}) ^ RoutedGroups.__annotations__.keys()
    if odd:
        raise TypeError(f"a route {'has no' if min(odd) in groups else 'needs'} '{min(odd)}'")
    return groups["batch_size"], groups["src_world_size"], groups["dst_world_size"]


def _key(src_rank: int | None, dst_rank: int | None, **groups: Unpack[RoutedGroups]) -> RouteKey:
    names = groups["src_group_name"], groups["dst_group_name"]
    return build_route_channel_key(*names, src_rank, dst_rank, groups["tag"], groups.get("route_key"))


def get_group_world_size(manager_proxy: Any, group_name: str) -> int:
    """Return how many ranks a group has, as soon as its launch has begun; in no job, what the manager says.

    Raises:
        PeerNotFound: nobody has launched it within a minute; the text has the names of others.
        ValueError: the manager knows no such group.
    """
    session = current_or_none()
    if session is not None:
        return len(session.service(RanksOfGroups).of(group_name, GROUP_TIMEOUT_S))
    info = manager_proxy.get_worker_info(WorkerAddress(group_name, 0))
    if info is None:
        raise ValueError(f"there is no group '{group_name}'")
    size: int = info.group_world_size
    return size


def get_batch_size(data: Any, infer_batch_size_fn: Callable[[Any], int] | None = None) -> int:
    """Return how many rows a batch has."""
    return (infer_batch_size_fn or count_rows)(data)


# -- what a worker does ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _MessageLane:
    """Messages of `send` and `recv`, as RLinf sends them with `enable_p2p`."""

    worker: Worker
    group_name: str
    ranks: Sequence[int]

    def send(self, block: RowBlock, part: Any) -> AsyncHandle[None]:
        return self.worker.send(part, self.group_name, self.ranks[block.receiver], async_op=True)

    def recv(self, block: RowBlock) -> AsyncHandle[Any]:
        return self.worker.recv(self.group_name, self.ranks[block.sender], async_op=True)


def send_routed(
    worker: Worker,
    group_name: str,
    channel: Any,
    data: Any,
    *,
    route_key: Any = None,
    mode: str | None = None,
    tag: str | None = None,
    async_op: bool = False,
    batch_size: int | None = None,
    split_fn: Callable[[Any, list[int]], Sequence[Any]] | None = None,
    enable_p2p: bool = False,
    options: Any = None,
    decoupled_mode: bool = False,
    send_queue_size: int = 0,
) -> AsyncHandle[None] | None:
    """Do `Worker.send_to` in RLinf's spelling, whose options are `SendOptions`."""
    _check_way(channel, enable_p2p, decoupled_mode)
    own, rank, senders, ranks = both_sides(worker, group_name, GROUP_TIMEOUT_S)
    if decoupled_mode:
        router = _router_of(worker)
        plan = decoupled_build_send_plan(
            src_group_name=own,
            dst_group_name=group_name,
            src_rank=rank,
            src_world_size=senders,
            dst_world_size=len(ranks),
            tag=tag,
            route_key=route_key,
            batch_size=batch_size or counted_rows(own, group_name, rank, data, None) * senders,
            mode=mode,
            tag_batch_router=router.get(tag),
            send_queue_size=send_queue_size,
        )
        parts = (split_fn or split_rows)(data, [entry.batch_size for entry in plan.entries])
        if tag in router:
            router[tag] = []
        puts = [
            channel.put({"batch_index": entry.batch_index, "batch": part}, key=entry.key, async_op=True)
            for entry, part in zip(plan.entries, parts, strict=True)
        ]
        sent: AsyncHandle[None] = Gathered(puts, lambda _: None, _call("send_to", group_name, tag))
        return sent if async_op else sent.wait()
    stream = tag if mode is None else f"{mode}_{tag}"
    if batch_size is None:
        rows = counted_rows(own, group_name, rank, data, None)
        route = even_route(own, senders, group_name, len(ranks), rank, rows)
    else:
        route = plan_route(own, senders, group_name, len(ranks), rows=batch_size)

    def queue_of(block: RowBlock) -> RouteKey:
        return build_route_channel_key(own, group_name, rank, block.receiver, stream, route_key)

    lane = _MessageLane(worker, group_name, ranks) if enable_p2p else ChannelLane(channel, queue_of)
    sent = send_batch(route, rank, data, lane, _call("send_to", group_name, stream), split=split_fn)
    return sent if async_op else sent.wait()


def recv_routed(
    worker: Worker,
    group_name: str,
    channel: Any,
    *,
    route_key: Any = None,
    tag: str | None = None,
    async_op: bool = False,
    batch_size: int,
    merge_fn: Callable[[list[Any]], Any] | None = None,
    infer_batch_size_fn: Callable[[Any], int] | None = None,
    enable_p2p: bool = False,
    options: Any = None,
    decoupled_mode: bool = False,
    recv_queue_size: int = 0,
) -> Any:
    """Do `Worker.recv_from` in RLinf's spelling, whose options are `RecvOptions`."""
    _check_way(channel, enable_p2p, decoupled_mode)
    own, rank, receivers, ranks = both_sides(worker, group_name, GROUP_TIMEOUT_S)
    what = _call("recv_from", group_name, tag)
    if decoupled_mode:
        router = _router_of(worker)
        plan = decoupled_build_recv_plan(
            src_group_name=group_name,
            dst_group_name=own,
            recv_rank=None if tag in router else rank,
            src_world_size=receivers,
            dst_world_size=len(ranks),
            tag=tag,
            route_key=route_key,
            batch_size=batch_size,
            recv_queue_size=recv_queue_size,
        )

        def finish(messages: list[dict[str, Any]]) -> Any:
            if split_channel_message(messages[0]["batch_index"])[3] not in router:
                messages = sorted(messages, key=lambda each: split_channel_message(each["batch_index"])[1])
            parts = [message["batch"] for message in messages]
            for part, entry in zip(parts, plan.entries, strict=True):
                rows = get_batch_size(part, infer_batch_size_fn)
                if rows != entry.batch_size:
                    raise RouteError("", "", f"{rows} rows came, where {entry.batch_size} belong")
            batch = (merge_fn or merge_rows)(parts)
            for message in messages:
                answered = router.get(split_channel_message(message["batch_index"])[3])
                if answered is not None:
                    answered.append(message["batch_index"])
            return batch

        gets = [channel.get(key=entry.key, async_op=True) for entry in plan.entries]
        received: AsyncHandle[Any] = Gathered(gets, finish, what)
        return received if async_op else received.wait()
    route = plan_route(group_name, len(ranks), own, receivers, rows=batch_size)

    def queue_of(block: RowBlock) -> RouteKey:
        return build_route_channel_key(group_name, own, block.sender, rank, tag, route_key)

    lane = _MessageLane(worker, group_name, ranks) if enable_p2p else ChannelLane(channel, queue_of)
    received = recv_batch(route, rank, lane, what, merge=merge_fn, count=infer_batch_size_fn)
    return received if async_op else received.wait()


def _check_way(channel: Any, enable_p2p: bool, decoupled_mode: bool) -> None:
    if decoupled_mode and enable_p2p:
        raise ValueError("decoupled_mode needs a channel: enable_p2p=True goes from rank to rank")
    if channel is None and not enable_p2p:
        raise ValueError("a channel by which the rows go is missing; or say enable_p2p=True")


def _router_of(worker: Any) -> dict[str | None, list[str]]:
    router: dict[str | None, list[str]] | None = getattr(worker, "batch_router", None)
    if router is None:
        problem = (
            "decoupled_mode needs self.batch_router: {} of a rank that asks, {tag: []} of one that answers"
        )
        raise ValueError(problem)
    return router


def _call(method: str, group: str, tag: str | None) -> str:
    return f"{method}({group!r}{f', tag={tag!r}' if tag else ''})"


def _check_rank(side: str, rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise RouteError("source", "destination", f"there is no {side} rank {rank} of {world_size}")
