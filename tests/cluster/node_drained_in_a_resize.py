"""A node is drained while the ranks that it has are leaving their group already: a program that says what it saw."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from threading import Event

from nodes_that_come_and_go import DEADLINE_S, Rank, drain, next_of

from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy
from rlinf_scheduler.session import current_session
from rlinf_scheduler.worker.supervision import groups_of


class Busy(Rank):
    """Has a call that ends when it is told to."""

    def hold(self):
        """Until there is an item."""
        return Channel.connect("go on").get(timeout_s=DEADLINE_S)


def main():
    """Write what was seen, as JSON."""
    seen, events = {}, Queue()
    with Cluster(simulate="2x2") as cluster, ThreadPoolExecutor() as threads:
        cluster.subscribe(events.put)
        go_on = Channel.create("go on")
        group = Busy.create_group().launch(cluster, NodePlacementStrategy([0, 0, 1, 1]), name="ranks")
        holds = group.execute_on(1).hold()
        threads.submit(group.shrink, ranks=[1], drain_s=DEADLINE_S)
        next_of(events, "GroupResized")
        threads.submit(group.shrink, ranks=[2])
        (in_line,) = (each for each in groups_of(current_session()) if each.name == "ranks")
        pause, deadline = Event(), time.monotonic() + DEADLINE_S
        while len(in_line._resizes) < 2:
            assert time.monotonic() < deadline
            pause.wait(0.05)
        drain(cluster.topology.nodes[1].node_id, 2 * DEADLINE_S)
        next_of(events, "NodeDraining")
        while len(in_line._resizes) < 3:
            assert time.monotonic() < deadline
            pause.wait(0.05)
        go_on.put("on")
        seen["held"] = holds.wait(DEADLINE_S)
        seen["ranks"] = [next_of(events, "GroupResized", 15.0).new_ranks for _ in range(2)]
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
