"""RLinf's spelling of `send_to` and `recv_from`, on `Worker`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Options that only RLinf's spelling has.
_SEND = frozenset(
    (
        "batch_size",
        "data",
        "decoupled_mode",
        "enable_p2p",
        "mode",
        "options",
        "route_key",
        "send_queue_size",
        "split_fn",
    )
)
_RECV = frozenset(
    (
        "batch_size",
        "decoupled_mode",
        "enable_p2p",
        "infer_batch_size_fn",
        "merge_fn",
        "options",
        "recv_queue_size",
        "route_key",
    )
)


class Routing:
    """`send_to` and `recv_from` in RLinf's spelling, beside that of `rlinf_scheduler.Worker`; a part of `Worker`.

    RLinf's is meant where there is an option of its own, such as `data=` or `batch_size=`, or a channel stands in the
    second place. Both sides of a route use the same spelling.
    """

    if not TYPE_CHECKING:  # which sees those of `rlinf_scheduler.Worker`

        def send_to(self, group_name, *args, **options):  # noqa: ANN001, ANN002, ANN003, ANN201
            """Send this rank's rows of a batch to a group; in RLinf's spelling or that of `rlinf_scheduler.Worker`."""
            if _SEND & options.keys() or (len(args) > 1 and (args[0] is None or _is_channel(args[0]))):
                from rlinf.scheduler.worker.routing import send_routed  # noqa: PLC0415 - loaded by those who use it

                return send_routed(self, group_name, *args, **options)
            return super().send_to(group_name, *args, **options)

        def recv_from(self, group_name, *args, **options):  # noqa: ANN001, ANN002, ANN003, ANN201
            """Receive this rank's rows of a batch; in RLinf's spelling or that of `rlinf_scheduler.Worker`."""
            if _RECV & options.keys() or (args and _is_channel(args[0])):
                from rlinf.scheduler.worker.routing import recv_routed  # noqa: PLC0415 - loaded by those who use it

                return recv_routed(self, group_name, *args, **options)
            return super().recv_from(group_name, *args, **options)


def _is_channel(value: Any) -> bool:
    return hasattr(value, "put_nowait")
