"""Fixtures that all tests share: one Ray for the whole session."""

import warnings

import pytest
from hypothesis import settings

# A busy machine is no mistake; whole tests have a limit.
settings.register_profile("scheduler", deadline=None)
settings.load_profile("scheduler")

# What shares something that is made once: all tests of a group run in one process, one after the other.
GROUPS = ("ray",)


@pytest.hookimpl(tryfirst=True)  # before the plug-in reads the groups
def pytest_collection_modifyitems(items):
    """Let tests of Ray run in one process, beside all others in another."""
    for item in items:
        for name in GROUPS:
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.xdist_group(name))


@pytest.fixture(scope="session")
def ray_cluster():
    """Two simulated nodes of four accelerators, on one real Ray; the second was started with a mask."""
    from rlinf.scheduler import Cluster, Topology
    from rlinf.scheduler.planning import Node

    plain = Node(num_accelerators=4)
    masked = Node(num_accelerators=4, visible=("4", "5", "6", "7"))

    with warnings.catch_warnings():
        # Ray leaves sockets and files to the garbage collector while it starts.
        warnings.simplefilter("ignore")
        cluster = Cluster(simulate=Topology(nodes=(plain, masked)))
    yield cluster
    cluster.close()


@pytest.fixture
def driver(ray_cluster):
    """The cluster, in a test that uses it as this process's: to create channels, say."""
    return ray_cluster


@pytest.fixture(autouse=True)
def current_session_of_the_test(request):
    """A test that uses the cluster has its session; what others make current ends with them."""
    from rlinf.scheduler.session import set_current

    if "ray_cluster" in request.fixturenames:
        set_current(request.getfixturevalue("ray_cluster").session)
    yield
    set_current(None)
