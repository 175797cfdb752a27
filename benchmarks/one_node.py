"""The Ray that the benchmarks run on: this machine as one node, as a user gets it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlinf.scheduler import Cluster
from rlinf_scheduler.ray_backend.patches import use_fresh_token


@contextmanager
def one_node() -> Iterator[Cluster]:
    """A cluster of this machine alone, with Ray's own size of its object store.

    A simulated cluster would not be fair to Ray: its nodes have small stores, which spill large objects to the disk.
    """
    # Ray would leave a token in the home directory otherwise.
    restore_token = use_fresh_token()
    try:
        with Cluster(address="local") as cluster:
            yield cluster
    finally:
        restore_token()


@contextmanager
def socket_path() -> Iterator[str]:
    """Where two processes of this user can meet."""
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder, "pipe"))
