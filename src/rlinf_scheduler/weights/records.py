"""The questions of a reader of weights to their publisher; the answer is replication's `ReaderAnswer`."""

from __future__ import annotations

import msgspec

from rlinf_scheduler.comm.replication import Want

SERVICE = "weights"
FETCH = "weights.fetch"
# Asks for the versions that a process publishes, by name.
VERSIONS = "weights.versions"
NO_VERSION = -1


class FetchWeights(msgspec.Struct, array_like=True):
    """A question for the newest version, or for one of which the newest is not newer.

    Attributes:
        name: what the weights are published as.
        min_version: the least version that will do; NO_VERSION if any does.
        want: the reader; what it has `heard` is a version.
        devices: where the reader can read what lies there.
        exact: only `min_version` itself will do.
    """

    name: str
    min_version: int
    want: Want
    devices: tuple[str, ...] = ()
    exact: bool = False
