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


class _Options(TypedDict, total=False):
    """Options of ours, for both."""

    channel: Channel | None
    tag: str
    count: Count | None
    wait_for_return: bool


class _SendOptions(_Options, total=False):
    split: Split | None


class _RecvOptions(_Options, total=False):
    merge: Merge | None


class RouteOptions(TypedDict, total=False):
    """Options that only RLinf's spelling has, for both; what they mean says `send_routed`."""

    route_key: Any
    batch_size: int | None
    enable_p2p: bool
    options: CollectiveGroupOptions | None
    decoupled_mode: bool


class SendOptions(RouteOptions, total=False):
    """Options of `send_to` that only RLinf's spelling has."""

    mode: str | None
    split_fn: Callable[[Any, list[int]], Sequence[Any]] | None
    send_queue_size: int


class RecvOptions(RouteOptions, total=False):
    """Options of `recv_from` that only RLinf's spelling has."""

    merge_fn: Callable[[list[Any]], Any] | None
    infer_batch_size_fn: Callable[[Any], int] | None
    recv_queue_size: int


class _RlinfSendOptions(SendOptions, total=False):
    tag: str | None


class _RlinfRecvOptions(RecvOptions, total=False):
    tag: str | None


_SEND = SendOptions.__annotations__.keys() | {"data"}
_RECV = RecvOptions.__annotations__.keys()


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
        **options: Unpack[_SendOptions],
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
        **options: Unpack[_SendOptions],
    ) -> AsyncHandle[None]: ...

    @overload
    def send_to(
        self,
        group_name: str,
        channel: Channel | None,
        data: Any,
        *,
        async_op: Now = ...,
        **options: Unpack[_RlinfSendOptions],
    ) -> None: ...

    @overload
    def send_to(
        self,
        group_name: str,
        channel: Channel | None,
        data: Any,
        *,
        async_op: Later,
        **options: Unpack[_RlinfSendOptions],
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
        **options: Unpack[_RecvOptions],
    ) -> AsyncHandle[Any]: ...

    @overload
    def recv_from(
        self,
        group_name: str,
        rows: Rows = ...,
        async_op: bool = ...,
        timeout_s: Seconds = ...,
        **options: Unpack[_RecvOptions],
    ) -> Any: ...

    @overload
    def recv_from(
        self,
        group_name: str,
        channel: Channel | None = None,
        *,
        async_op: Later,
        **options: Unpack[_RlinfRecvOptions],
    ) -> AsyncHandle[Any]: ...

    @overload
    def recv_from(
        self,
        group_name: str,
        channel: Channel | None = None,
        *,
        async_op: bool = ...,
        **options: Unpack[_RlinfRecvOptions],
    ) -> Any: ...

    def recv_from(self, group_name: str, *args: Any, **options: Any) -> Any:
        """Receive this rank's rows of a batch; in RLinf's spelling or that of `rlinf_scheduler.Worker`."""
        if _RECV & options.keys() or (args and _is_channel(args[0])):
            from rlinf.scheduler.worker.routing import recv_routed  # noqa: PLC0415 - loaded by those who use it

            return recv_routed(self, group_name, *args, **options)
        return super().recv_from(group_name, *args, **options)


def _is_channel(value: Any) -> bool:
    return hasattr(value, "put_nowait")
