"""A job on a Ray of its own, one of whose nodes is killed and another joins; run as a program, it says what it saw."""

import json
import os
import select
import signal
import sys
import time

from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy, Worker
from rlinf_scheduler.planning import Node
from rlinf_scheduler.ray_backend import backend, variables
from rlinf_scheduler.ray_backend.fewest_processes import fewest_processes
from rlinf_scheduler.ray_backend.probe import simulated_environment

DEADLINE_S = 60.0


KEPT = []


class KeptNodes(backend.RayTestCluster):
    """The simulated nodes, for a test to add one."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        KEPT.append(self)


class Rank(Worker):
    """Waits for what never comes."""

    def where(self):
        """The process's own id, and that of the raylet that started it."""
        return os.getpid(), int(os.environ["RAY_RAYLET_PID"])

    def wait_for(self, other):
        """How a wait for an item of another rank ends."""
        try:
            self.recv("doomed", other, timeout_s=DEADLINE_S)
        except Exception as error:  # noqa: BLE001 - its text is what is looked at
            return str(error)
        return "an item"


def timed(function):
    """How long it took, and the type and text of what it raised."""
    began = time.monotonic()
    try:
        function()
    except Exception as error:  # noqa: BLE001 - its text is what is looked at
        return [time.monotonic() - began, type(error).__name__, str(error)]
    return [time.monotonic() - began, "", ""]


def end_of(descriptor):
    """How long it takes until a process has ended."""
    began = time.monotonic()
    ended = select.select([descriptor], [], [], DEADLINE_S)[0]
    return time.monotonic() - began if ended else None


def launch(cluster, name, *nodes):
    """A rank on each of these nodes."""
    return Rank.create_group().launch(cluster, NodePlacementStrategy(list(nodes)), name=name)


def node_ids(topology):
    """Ray's names of the nodes, in rank order."""
    return [node.node_id for node in topology.nodes]


def lose_a_node(cluster, seen):
    """Kill a raylet while calls, a recv and a channel wait for what is on its node."""
    doomed, living = launch(cluster, "doomed", 1), launch(cluster, "living", 0)
    [(pid, raylet)] = doomed.where().wait(DEADLINE_S)
    channel = Channel.create("beside", group_affinity="doomed")
    getting = channel.get(async_op=True)
    calling, receiving = doomed.wait_for(0), living.wait_for(0)
    rank = os.pidfd_open(pid)
    os.kill(raylet, signal.SIGKILL)
    seen["call"] = timed(lambda: calling.wait(DEADLINE_S))
    seen["get"] = timed(lambda: getting.wait(DEADLINE_S))
    [seen["recv"]] = receiving.wait(DEADLINE_S)
    seen["later call"] = timed(lambda: doomed.where().wait(DEADLINE_S))
    seen["launch"] = timed(lambda: launch(cluster, "late", 1))
    seen["rank ended"] = end_of(rank)
    seen["lost"] = {str(each): why for each, why in cluster.lost_nodes.items()}
    seen["create"] = timed(lambda: Channel.create("beside").put(1))


def join_two_nodes(cluster, ray_nodes, seen):
    """A node with the rank of the lost one takes its place; another one comes last."""
    for rank in (1, 2):
        pretended = simulated_environment(rank, Node(num_accelerators=1))
        environment = {**variables.of_a_node(os.environ), **pretended}
        options = {"env_vars": environment, "labels": variables.LABELS, "object_store_memory": 100 << 20}
        with fewest_processes():
            node = ray_nodes.add_node(wait=False, num_cpus=1, **options)
        ray_nodes._wait_for_node(node, timeout=2 * DEADLINE_S)
    seen["before"] = node_ids(cluster.topology)
    seen["after"] = node_ids(cluster.refresh(timeout_s=DEADLINE_S))
    seen["lost after"] = sorted(cluster.lost_nodes)
    return launch(cluster, "new", 1, 2)


def lose_a_bare_node(cluster, group, seen, lost):
    """Kill the raylet of a node on which nothing of the job runs any more."""
    raylets = [raylet for _, raylet in group.where().wait(DEADLINE_S)]
    seen["new"] = len(raylets)
    group.terminate()
    os.kill(raylets[-1], signal.SIGKILL)
    began = time.monotonic()
    while len(lost) < 2:
        select.select([], [], [], 0.05)
        if time.monotonic() - began > DEADLINE_S:
            break
    seen["bare"] = [time.monotonic() - began, cluster.lost_nodes.get(2, "")]
    seen["without it"], seen["lost at last"] = node_ids(cluster.topology), sorted(cluster.lost_nodes)


def main():
    """Write what was seen, as JSON."""
    seen, lost = {}, []
    backend.RayTestCluster = KeptNodes
    with Cluster(simulate="2x1") as cluster:
        cluster.subscribe(lambda event: type(event).__name__ == "NodeLost" and lost.append(event.reason))
        lose_a_node(cluster, seen)
        new = join_two_nodes(cluster, KEPT[0], seen)
        lose_a_bare_node(cluster, new, seen, lost)
        seen["events"] = lost
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
