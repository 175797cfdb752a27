"""Fixtures that all tests share: one Ray for the whole session, one place from which processes are forked."""

import gc
import logging
import os
import signal
import sys
import warnings
from multiprocessing import forkserver
from pathlib import Path

import pytest
from hypothesis import settings

from disks import small_disk, stopping_disk  # noqa: F401
from effort import tries

# A busy machine is no mistake: what programs print is the same there. Whole tests have a limit.
os.environ["RLINF_PROGRESS"] = "0"
settings.register_profile("scheduler", deadline=None, max_examples=tries(40))
settings.load_profile("scheduler")

# All tests of a group run in one process, one after the other: what shares the Ray that is made once, and what starts
# Rays of its own, of which the machine should not have many at a time.
SHARED_RAY, OWN_RAYS = "ray", "rays"
# Ray starts an interpreter a process, for seconds; on a busy machine for a minute.
RAY_LIMIT_S = 300
INTERRUPTED_LIMIT_S = 120
LINE_LIMIT_S = 60.0
RAY_WITNESS = pytest.StashKey()
SUPPORT = Path(__file__).with_name("support")
# These take longest beside the tests of Ray: at the end, one process would be left with them.
TESTS = Path(__file__).parent
LONG = {
    TESTS / "simulation",
    TESTS / "worker" / "test_leaving_nodes.py",
    TESTS / "worker" / "test_resized_collectives.py",
}
# What the children of tests run: they are forked from a process that has it; to import it takes half a second each.
PRELOADED = (
    "arena_peers",
    "arrival_roles",
    "broadcast_peers",
    "call_peers",
    "channel_processes",
    "channel_roles",
    "comm_peers",
    "crowd_peers",
    "data_loading_workers",
    "death_roles",
    "device_peers",
    "engine_ranks",
    "face_routing_workers",
    "forked_job",
    "gpu_peers",
    "interruption_exchanges",
    "interruption_roles",
    "job_processes",
    "joined_workers",
    "detached_workers",
    "machine_peers",
    "orphaned_ranks",
    "ray_workers",
    "regression_roles",
    "routed_workers",
    "returning_workers",
    "seeded_workers",
    "sharded_actor",
    "sharded_turns_workers",
    "sharded_workers",
    "shared_memory_roles",
    "weights_job",
    "weights_peers",
    "weights_workers",
)
# What each rank imports when it begins, for 10 ms, and when it shards a model, for 600.
LOADED_BY_RANKS = (
    "multiprocessing.popen_forkserver",
    "rlinf_scheduler.hardware.seen",
    "rlinf_scheduler.profiling.sampled",
    "rlinf_scheduler.tracing.tracer",
)
LOADED_BY_FSDP2 = ("torch._dynamo",)


def pytest_configure():
    """Let Ctrl-C interrupt, as tests expect, wherever they were started."""
    # What starts tests in the background may have it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.root.manager.loggerDict = _Loggers(logging.root.manager.loggerDict)


class _Loggers(dict):
    """Loggers by name: pytest goes through them with no lock, as threads make some for groups that print."""

    def values(self):
        return list(super().values())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Let an alarm that comes after its test do nothing: by default it ends the process without a word."""
    if item.get_closest_marker("interrupted"):
        signal.signal(signal.SIGALRM, signal.SIG_IGN)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Let the other tests of a file run in one process too: what they share is made once, and less is sent around."""
    from xdist.scheduler import LoadGroupScheduling

    class ByGroupOrFile(LoadGroupScheduling):
        def _split_scope(self, nodeid):
            group = super()._split_scope(nodeid)
            return nodeid.partition("::")[0] if group == nodeid else group

    # They begin in the order of `_turn`, however many they are.
    config.option.loadscopereorder = False
    return ByGroupOrFile(config, log)


@pytest.hookimpl(tryfirst=True)  # before the plug-in reads the groups
def pytest_collection_modifyitems(items):
    """Let tests of Ray run in two processes, which take longest and begin, beside all others in further ones."""
    items.sort(key=_turn)
    for item in items:
        if ray := item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.xdist_group(OWN_RAYS if ray.kwargs.get("own") else SHARED_RAY))
            if ray.kwargs.get("own"):
                item.add_marker(pytest.mark.system)
        if item.get_closest_marker("interrupted"):
            # Python drops what is raised in the callback of a finalizer, and says so.
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
        if item.get_closest_marker("timeout"):
            continue
        if item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.timeout(RAY_LIMIT_S))
        elif item.get_closest_marker("interrupted"):
            # The usual way to end a test that takes too long needs the signal that these tests use.
            item.add_marker(pytest.mark.timeout(INTERRUPTED_LIMIT_S, method="thread"))


def _turn(item):
    ray = item.get_closest_marker("ray")
    if ray is None:
        return 4 if LONG.isdisjoint((item.path, *item.path.parents)) else 3
    return 0 if ray.kwargs.get("first") else 1 if ray.kwargs.get("own") else 2


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect tests with no collection of garbage: what they import stays, and each would look at all of it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session):
    """Check the groups, and start the process that children are forked from, if some test may want one."""
    if session.config.getoption("loadgroup", default=False):
        apart = [i.nodeid for i in session.items if i.get_closest_marker("ray") and "@" not in i.nodeid]
        if apart:
            raise pytest.UsageError(f"pytest-xdist does not keep the tests of Ray together: {apart[0]}")
    gc.freeze()  # as it is: a look at all of it takes most of a second
    wanted = [name for name in PRELOADED if name in sys.modules]
    if not wanted:
        return
    here = {str(Path(sys.modules[name].__file__).parent) for name in wanted} | {str(SUPPORT)}
    later = (*LOADED_BY_RANKS, *(LOADED_BY_FSDP2 if "torch.distributed.fsdp" in sys.modules else ()))
    former = os.environ.get("PYTHONPATH")
    # The one way to tell that process where these are: Python 3.11 does not tell it its parent's path in time.
    os.environ["PYTHONPATH"] = os.pathsep.join([*sorted(here), *filter(None, [former])])
    try:
        # What a test's own file imports, and what started it, too.
        forkserver.set_forkserver_preload(
            ["no_collector", "pytest", *wanted, *later, "collector_of_children"]
        )
        forkserver.ensure_running()
    finally:
        if former is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = former


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Tell with a test that fails what the shared Ray has died of."""
    report = yield
    witness = item.config.stash.get(RAY_WITNESS, None)
    if report.failed and witness is not None and (ended := witness.told()):
        report.sections.append(("The Ray that all tests share", ended))
    return report


def _leave_to_no_collector():
    """What is there by now stays, thousands of tests and what they import: no collection looks at it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Do that after every file too: what its tests have imported stays, and some tests collect garbage often."""
    done = yield
    if nextitem is None or nextitem.path != item.path:
        _leave_to_no_collector()
    return done


@pytest.fixture(scope="session")
def ray_cluster(pytestconfig):
    """Two simulated nodes of four accelerators, on one real Ray; the second was started with a mask."""
    from forked_ray_worker import forked_ray_workers
    from ray_witness import RayWitness
    from rlinf.scheduler import Cluster, Topology
    from rlinf_scheduler.planning import Node

    plain = Node(num_accelerators=4)
    masked = Node(num_accelerators=4, visible=("4", "5", "6", "7"))

    with warnings.catch_warnings(), forked_ray_workers(many=True):
        # Ray leaves sockets and files to the garbage collector while it starts.
        warnings.simplefilter("ignore")
        cluster = Cluster(simulate=Topology(nodes=(plain, masked)))
    pytestconfig.stash[RAY_WITNESS] = witness = RayWitness()
    yield cluster
    del pytestconfig.stash[RAY_WITNESS]
    witness.close()
    cluster.close()


@pytest.fixture
def ray_address(ray_cluster):
    """Where another program joins that Ray, with a job of its own: it takes seconds to start one.

    A test that leaves a job there, or devices that one holds, fails itself, and not those that come later.
    """
    import ray

    from left_jobs import end_left_jobs

    yield ray.get_runtime_context().gcs_address
    end_left_jobs()


@pytest.fixture
def caplog(caplog, monkeypatch):
    """What is logged; a line of an I/O thread is written before what follows from it, on a busy machine too.

    What earlier tests dropped in a cycle is told of before, and not in the log of the test that happens to collect it.
    """
    from rlinf_scheduler.comm import reports

    gc.collect()
    monkeypatch.setattr(reports, "WRITING_S", LINE_LIMIT_S)
    return caplog


@pytest.fixture
def driver(ray_cluster):
    """The cluster, in a test that uses it as this process's: to create channels, say."""
    return ray_cluster


@pytest.fixture(autouse=True)
def current_session_of_the_test(request):
    """A test that uses the cluster has its session; what others make current ends with them."""
    from rlinf_scheduler.session import set_current

    if "ray_cluster" in request.fixturenames:
        set_current(request.getfixturevalue("ray_cluster").session)
    yield
    set_current(None)
