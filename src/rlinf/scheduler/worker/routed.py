"""RLinf's spelling of `send_to` and `recv_from`, on `Worker`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import rlinf_scheduler.worker as core

if TYPE_CHECKING:
    from rlinf.scheduler.collective import CollectiveGroupOptions
    from rlinf_scheduler.channel import Channel
    from rlinf_scheduler.comm.handle import AsyncHandle, Later, Now, Seconds
    from rlinf_scheduler.routing.transfer import Count, Merge, Split
    from rlinf_scheduler.worker.routed import Rows

    Via = Channel | None


class _Ours(TypedDict, total=False):
    """Options of our spelling, for both."""

    channel: Channel | None
    tag: str
    count: Count | None
    wait_for_return: bool


class _OurSendOptions(_Ours, total=False):
    split: Split | None


class _OurRecvOptions(_Ours, total=False):
    merge: Merge | None


class RouteOptions(TypedDict, total=False):
    """Options of RLinf's spelling, for both.

    Attributes:
        tag: the stream; where `mode=` was given to `send_to`, `recv_from` has it in front.
        route_key: what keeps one of several streams of a tag apart.
        batch_size: the rows of the whole batch; None in `send_to`: each sender has as many as this one.
        enable_p2p: as messages of `send` and `recv`; the channel is None then.
        options: taken, and without effect.
        decoupled_mode: any rank of the other group takes a message, and answers the rank that sent it;
            `self.batch_router` has the tags that this rank answers, each with the messages that it has yet to answer.
    """

    tag: str | None
    route_key: Any
    batch_size: int | None
    enable_p2p: bool
    options: CollectiveGroupOptions | None
    decoupled_mode: bool


class SendOptions(RouteOptions, total=False):
    """Options of `send_to` in RLinf's spelling.

    Attributes:
        mode: the phase, which comes before the tag; the receivers of the decoupled form answer with it.
        split_fn: makes the parts of the data; None: `split_batch`.
        send_queue_size: how many messages of the decoupled form; 0: one for each receiver that falls to this rank.
    """

    mode: str | None
    split_fn: Callable[[Any, list[int]], Sequence[Any]] | None
    send_queue_size: int


class RecvOptions(RouteOptions, total=False):
    """Options of `recv_from` in RLinf's spelling.

    Attributes:
        merge_fn: makes one batch of the parts; None: `merge_batches`.
        infer_batch_size_fn: says how many rows a part has; None: `infer_batch_size`.
        recv_queue_size: how many messages of the decoupled form; 0: one for each sender that falls to this rank.
    """

    merge_fn: Callable[[list[Any]], Any] | None
    infer_batch_size_fn: Callable[[Any], int] | None
    recv_queue_size: int


# By these RLinf's spelling is told from ours.
_SEND = {*SendOptions.__annotations__, "data"} - {"tag"}
_RECV = {*RecvOptions.__annotations__} - {"tag"}


class Routing(core.Worker):
    """`send_to` and `recv_from` in RLinf's spelling, beside that of `rlinf_scheduler.Worker`; a part of `Worker`.

    RLinf's is meant where there is an option of its own, such as `data=` or `batch_size=`, or a channel stands in the
    second place. Both sides of a route use the same spelling.
    """

    @overload
    def send_to(
        self,
        group_name: str,
        batch: Any,
        rows: Rows = ...,
        async_op: Now = ...,
        timeout_s: Seconds = ...,
        **options: Unpack[_OurSendOptions],
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
        **options: Unpack[_OurSendOptions],
    ) -> AsyncHandle[None]: ...

    @overload
    def send_to(
        self, group_name: str, channel: Via, data: Any, *, async_op: Now = ..., **told: Unpack[SendOptions]
    ) -> None: ...

    @overload
    def send_to(
        self, group_name: str, channel: Via, data: Any, *, async_op: Later, **told: Unpack[SendOptions]
    ) -> AsyncHandle[None]: ...

    def send_to(self, group_name: str, *args: Any, **options: Any) -> Any:
        """Send this rank's rows of a batch to a group; in RLinf's spelling or that of `rlinf_scheduler.Worker`."""
        if _SEND & options.keys() or (len(args) > 1 and (args[0] is None or _is_channel(args[0]))):
            from rlinf.scheduler.worker.routing import send_routed  # noqa: PLC0415 - loaded by those who use it

            return send_routed(self, group_name, *args, **options)
        return super().send_to(group_name, *args, **options)

    @overload
    def recv_from(
        self,
        group_name: str,
        rows: Rows = ...,
        *,
        async_op: Later,
        timeout_s: Seconds = ...,
        **options: Unpack[_OurRecvOptions],
    ) -> AsyncHandle[Any]: ...

    @overload
    def recv_from(
        self,
        group_name: str,
        rows: Rows = ...,
        async_op: bool = ...,
        timeout_s: Seconds = ...,
        **options: Unpack[_OurRecvOptions],
    ) -> Any: ...

    @overload
    def recv_from(
        self, group_name: str, channel: Via = None, *, async_op: Later, **told: Unpack[RecvOptions]
    ) -> AsyncHandle[Any]: ...

    @overload
    def recv_from(
        self, group_name: str, channel: Via = None, *, async_op: bool = ..., **told: Unpack[RecvOptions]
    ) -> Any: ...

    def recv_from(self, group_name: str, *args: Any, **options: Any) -> Any:
        """Receive this rank's rows of a batch; in RLinf's spelling or that of `rlinf_scheduler.Worker`."""
        if _RECV & options.keys() or (args and _is_channel(args[0])):
            from rlinf.scheduler.worker.routing import recv_routed  # noqa: PLC0415 - loaded by those who use it

            return recv_routed(self, group_name, *args, **options)
        return super().recv_from(group_name, *args, **options)


def _is_channel(value: Any) -> bool:
    return hasattr(value, "put_nowait")
