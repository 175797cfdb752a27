"""Fixtures that all tests share: one Ray for the whole session."""

import warnings

import pytest


@pytest.fixture(scope="session")
def ray_cluster():
    """Two simulated nodes of four accelerators, on one real Ray."""
    from rlinf.scheduler import Cluster

    with warnings.catch_warnings():
        # Ray leaves sockets and files to the garbage collector while it starts.
        warnings.simplefilter("ignore")
        cluster = Cluster(simulate="2x4")
    yield cluster
    cluster.close()
