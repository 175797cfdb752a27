"""Which cluster a command is about, found out before anything is started."""

from __future__ import annotations

NONE_FOUND = (
    "RAY_ADDRESS names no cluster, and none that was begun for all programs of this machine answers; one that a "
    "program simulates, or has begun for itself, is found by its address only"
)
HOW_TO = "`rlinf node start --head` begins one, `--address HOST:PORT` says where one is"


def running_cluster(address: str | None, timeout_s: float) -> str | None:
    """Where a cluster runs that can be joined; "" where none does, None where this process is in one.

    Raises:
        ClusterTimeout: nothing answers at the address that was given.
    """
    # Ray takes a second to load, and the other commands do without it.
    import ray  # noqa: PLC0415

    from rlinf_scheduler.ray_backend.addresses import LOCAL, find_address  # noqa: PLC0415

    if ray.is_initialized():
        return None
    found = find_address(address, None, timeout_s)
    return "" if found == LOCAL else found
