"""The cluster as a driver meets it."""

import contextlib
import os
import select
import signal
from pathlib import Path

import pytest

from programs import Program
from rlinf_scheduler import Channel, Cluster, errors
from rlinf_scheduler.comm import ClusterSecret
from rlinf_scheduler.events import WorkerLogged
from rlinf_scheduler.proc import living
from rlinf_scheduler.session import EventBus, Session, current_or_none, current_session
from rlinf_scheduler.session.session import _abandon_in_child

DRIVER = """
import sys, threading
from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker

class Busy(Worker):
    def pid(self):
        import os
        return os.getpid()

    def wait(self):
        threading.Event().wait(600)

cluster = Cluster()
group = Busy.create_group().launch(cluster, NodePlacementStrategy([0]))
print("pid", *group.pid().wait(200), flush=True)
{end}
"""


@pytest.mark.ray
def test_the_simulated_nodes_have_their_accelerators_and_keep_their_order(ray_cluster):
    nodes = ray_cluster.topology.nodes
    assert [node.num_accelerators for node in nodes] == [4, 4]
    assert len({node.node_id for node in nodes}) == 2
    assert (ray_cluster.num_nodes, ray_cluster.num_accelerators) == (2, 8)


@pytest.mark.ray
def test_simulated_nodes_start_no_server_of_rays_that_nobody_asks(ray_cluster):
    commands = ""
    for process, parent in living().items():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if parent == os.getpid():
                commands += Path(f"/proc/{process.pid}/cmdline").read_text()
    assert "/log_monitor.py" in commands
    assert "/dashboard.py" not in commands


@pytest.mark.ray
def test_a_second_cluster_is_a_view_that_closes_nothing(ray_cluster):
    groups = [{"label": "second", "node_ranks": 1}]
    view = Cluster({"num_nodes": 2, "component_placement": {"a": "0"}, "node_groups": groups})
    assert "second" in view.topology.group_labels
    assert "second" not in ray_cluster.topology.group_labels
    view.close()
    assert not ray_cluster.session.closed


@pytest.mark.ray
def test_a_job_is_saved_and_its_channels_are_restored(ray_cluster, tmp_path):
    tasks = Channel.create("tasks to be saved")
    for number in range(3):
        tasks.put(number)
    with tasks.lease() as lease:
        ray_cluster.save(tmp_path / "job", channels=[tasks], extra={"step": 1}, acknowledge=lease)
    tasks.delete()
    saved = Cluster.load(tmp_path / "job")
    assert saved.extra == {"step": 1}
    with ray_cluster.starting():
        again = Channel.create("tasks to be saved", restore=saved)
    assert again.drain() == [1, 2]
    with pytest.raises(errors.CheckpointError, match="'nothing' is not in it: it has 'tasks to be saved'"):
        Channel.create("nothing", restore=saved)


@pytest.mark.ray
def test_more_nodes_than_there_are_is_an_error_that_counts_both(ray_cluster):
    with pytest.raises(errors.ConfigError, match="num_nodes is 3, but this cluster has 2 nodes"):
        Cluster(num_nodes=3)


@pytest.mark.parametrize("shape", ["2y8", "0x2", "-1"])
def test_a_shape_that_cannot_be_read_is_refused_before_anything_starts(shape):
    with pytest.raises(errors.ConfigError):
        Cluster(simulate=shape)


@pytest.mark.parametrize(
    "argument",
    [
        {"num_nodes": 0},
        {"num_nodes": "2"},
        {"num_nodes": True},
        {"start_timeout_s": -1},
        {"start_timeout_s": None},
    ],
)
def test_a_number_that_is_none_is_refused_before_a_ray_is_looked_for(argument):
    ((name, value),) = argument.items()
    with pytest.raises(errors.ConfigError, match=f"{name}={value!r}: it is a"):
        Cluster(address="203.0.113.1:6379", **argument)


@pytest.mark.ray
def test_another_shape_than_this_process_has_is_refused(ray_cluster):
    assert Cluster(simulate="2x4").num_accelerators == 8
    with pytest.raises(errors.ConfigError, match=r"\[8, 8\].*\[4, 4\]"):
        Cluster(simulate="2x8")


@pytest.mark.ray
def test_a_view_takes_what_there_is_whatever_the_environment_simulates(ray_cluster, monkeypatch):
    monkeypatch.setenv("RLINF_SIMULATE", "1x8")
    assert Cluster().num_accelerators == 8


def test_a_mistake_in_the_groups_is_found_before_ray_is_started(monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.session.session._current", None)
    config = {
        "num_nodes": 1,
        "component_placement": {"a": 0},
        "node_groups": [{"label": "g", "node_ranks": 5}],
    }
    with pytest.raises(errors.ConfigError, match="'g' has node 5"):
        Cluster(config, simulate="1x2")
    assert current_or_none() is None


def test_a_component_without_a_place_is_found_before_ray_is_started(monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.session.session._current", None)
    monkeypatch.setattr("rlinf_scheduler.opening.simulate_nodes", pytest.fail)
    with pytest.raises(errors.PlacementError, match="component 'a': accelerators 2-3 are not there"):
        Cluster({"num_nodes": 1, "component_placement": {"a": "0-3"}, "simulate": "1x2"})
    assert current_or_none() is None


def test_an_interrupted_close_undoes_everything_all_the_same():
    undone = []

    def interrupted():
        undone.append("interrupted")
        raise KeyboardInterrupt

    session = Session(ClusterSecret.generate(), "driver")
    session.on_close(lambda: undone.append("first opened"))
    session.on_close(interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.close()
    session.close()
    assert undone == ["interrupted", "first opened"]


def test_a_forked_child_leaves_its_parents_cluster_alone(monkeypatch):
    undone = []
    session = Session(ClusterSecret.generate(), "driver")
    session.on_close(lambda: undone.append("closed"))
    monkeypatch.setattr("rlinf_scheduler.session.session._current", session)
    _abandon_in_child()
    assert current_or_none() is None
    with pytest.raises(errors.ClusterError, match="forked child"):
        current_session()
    session.close()
    assert undone == []
    session.messenger.close()


@pytest.fixture
def start_driver(ray_address):
    """Starts a driver that ends as it is told; gives its process and its worker's process id."""
    with contextlib.ExitStack() as stack:

        def start(end):
            environment = {**os.environ, "RAY_ADDRESS": ray_address}
            code = DRIVER.format(end=end)
            process = Program("-c", code, with_ray=True, new_session=True, env=environment)
            stack.enter_context(process)
            for line in process.stdout:
                if line.startswith("pid"):
                    return process, int(line.split()[1])
            raise AssertionError(process.stderr.read())

        yield start


@pytest.mark.ray
@pytest.mark.parametrize(
    ("end", "number", "status"),
    [("1 / 0", None, 1), ("group.wait().wait()", signal.SIGTERM, 143)],
    ids=["error", "SIGTERM"],
)
def test_the_end_of_a_driver_is_its_own_and_takes_its_workers_along(start_driver, end, number, status):
    process, worker = start_driver(end)
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            contextlib.suppress(ProcessLookupError)
        )  # whoever fails may be faster than we are
        descriptor = os.pidfd_open(worker)
        stack.callback(os.close, descriptor)
        if number is not None:
            os.kill(process.pid, number)
        # Its end is another process's to see: on a busy machine that takes its time.
        assert select.select([descriptor], [], [], 240)[0]
    assert process.wait(240) == status


def test_a_listener_that_fails_holds_up_no_other(caplog):
    bus = EventBus()
    heard = []

    def broken(event):
        raise RuntimeError("no")

    bus.subscribe(broken)
    bus.subscribe(heard.append)
    event = WorkerLogged("g", 0, 20, "text")
    bus.emit(event)
    assert bus.flush(60)
    bus.close()
    assert heard == [event]
    assert "a listener failed" in caplog.text
