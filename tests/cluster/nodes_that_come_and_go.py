"""A job with `cluster.nodes` on a Ray of its own, as nodes join and are drained: a program that says what it saw."""

import json
import os
import sys
import time
from queue import Empty, Queue

import ray
from ray._private.worker import global_worker
from ray.core.generated import autoscaler_pb2

from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker
from rlinf_scheduler.events import NodeJoined
from rlinf_scheduler.planning import Node
from rlinf_scheduler.ray_backend import backend, variables
from rlinf_scheduler.ray_backend.fewest_processes import fewest_processes
from rlinf_scheduler.ray_backend.probe import simulated_environment
from rlinf_scheduler.session import current_session
from rlinf_scheduler.session.membership import Draining

DEADLINE_S = 60.0
KEPT = []


class KeptNodes(backend.RayTestCluster):
    """The simulated nodes, for a test to add one."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        KEPT.append(self)


class Rank(Worker):
    """Has a place."""

    def where(self):
        """Its node."""
        return ray.get_runtime_context().get_node_id()

    def finish(self):
        """Something that takes until the rank is to leave; whether it is told that it has time for that."""
        # Another node joins first.
        return current_session().service(Draining).began.wait(4 * DEADLINE_S) and self.draining_left_s > 0


def join(rank):
    """Another node comes."""
    pretended = simulated_environment(rank, Node(num_accelerators=1))
    environment = {**variables.of_a_node(os.environ), **pretended}
    options = {"env_vars": environment, "labels": variables.LABELS, "object_store_memory": 100 << 20}
    with fewest_processes():
        node = KEPT[0].add_node(wait=False, num_cpus=1, **options)
    KEPT[0]._wait_for_node(node, timeout=4 * DEADLINE_S)


def drain(node_id, left_s):
    """Somebody asks Ray to drain a node, as `ray drain-node` does."""
    accepted, why = global_worker.gcs_client.drain_node(
        node_id,
        autoscaler_pb2.DRAIN_NODE_REASON_PREEMPTION,
        "a notice",
        int((time.time() + left_s) * 1000) if left_s else 0,
    )
    assert accepted, why


def next_of(events, kind, deadline_s=DEADLINE_S):
    """The next event of a kind; others stay for who asks for them: groups do not wait for each other."""
    deadline, passed = time.monotonic() + deadline_s, []
    while True:
        try:
            event = events.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            raise AssertionError(f"no {kind} after {deadline_s} s, but {passed}") from None
        if type(event).__name__ == kind:
            events.queue.extendleft(reversed(passed))
            return event
        passed.append(event)


def launch(cluster, name, *nodes, moves=False):
    """A rank on each of these nodes."""
    options = {"on_failure": "restart", "restart_on": "any"} if moves else {}
    return Rank.create_group().launch(cluster, NodePlacementStrategy(list(nodes)), name=name, **options)


def main():
    """Write what was seen, as JSON."""
    seen, events = {}, Queue()
    backend.RayTestCluster = KeptNodes
    joined = Queue()
    with Cluster({"simulate": "2x1", "nodes": {"min": 2, "max": 3}}) as cluster:
        cluster.subscribe(lambda event: (joined if isinstance(event, NodeJoined) else events).put(event))
        seen["before"] = cluster.num_nodes
        join(2)
        seen["joined"] = next_of(joined, "NodeJoined").node_rank
        seen["after"] = cluster.num_nodes
        seen["lives there"] = launch(cluster, "new", 2).where().wait(DEADLINE_S) == [
            cluster.topology.nodes[2].node_id
        ]
        # One has a rank elsewhere, and goes on with that; the other one's only rank moves.
        staying, moving = launch(cluster, "staying", 0, 2), launch(cluster, "moving", 2, moves=True)
        calls = [group.finish() for group in (staying.execute_on(1), moving)]
        join(3)  # there is no room for it
        drain(cluster.topology.nodes[2].node_id, 120.0)
        draining = next_of(events, "NodeDraining")
        seen["draining"] = [draining.node_rank, draining.reason, draining.left_s]
        try:
            launch(cluster, "late", 2)
        except Exception as error:  # noqa: BLE001 - its text is what is looked at
            seen["launch"] = [type(error).__name__, str(error)]
        seen["finished"] = [call.wait(DEADLINE_S) for call in calls]
        shrunk = next_of(events, "GroupResized")
        seen["shrunk"] = [shrunk.group, shrunk.new_ranks, shrunk.why == draining.reason]
        returned = next_of(events, "WorkerReturned")
        seen["returned"] = [returned.group, returned.node_rank != 2]
        seen["elsewhere"] = moving.where().wait(DEADLINE_S)[0] != cluster.topology.nodes[2].node_id
        # In the place of the one that goes another one is taken.
        seen["instead"] = next_of(joined, "NodeJoined").node_rank
        seen["nodes"] = cluster.num_nodes
        launch(cluster, "instead", 3).where().wait(DEADLINE_S)
        drain(cluster.topology.nodes[3].node_id, 0)
        seen["no limit"] = next_of(events, "NodeDraining").left_s
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
