"""A node is to be given back sooner than it was said at first: a program that says what it saw."""

import json
import sys
from queue import Queue
from threading import Event

from nodes_that_come_and_go import DEADLINE_S, Rank, drain, next_of

from rlinf.scheduler import Cluster, NodePlacementStrategy


class Hung(Rank):
    """Has a call that does not end."""

    def hang(self):
        """Longer than the node is there."""
        Event().wait(10 * DEADLINE_S)


def main():
    """Write what was seen, as JSON."""
    events = Queue()
    with Cluster(simulate="2x1") as cluster:
        cluster.subscribe(events.put)
        group = Hung.create_group().launch(cluster, NodePlacementStrategy([0, 1]), name="ranks")
        group.execute_on(1).hang()
        node = cluster.topology.nodes[1].node_id
        drain(node, 10 * DEADLINE_S)
        next_of(events, "NodeDraining")
        next_of(events, "GroupResized")
        drain(node, 5.0)
        seen = {"left_s": next_of(events, "NodeDraining").left_s}
        seen["forced"] = next_of(events, "RankDrained").forced
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
