"""A node is drained while a rank starts on it: a program that says what it saw."""

import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from nodes_that_come_and_go import DEADLINE_S, Rank, drain, next_of

from rlinf.scheduler import Cluster, NodePlacementStrategy


class Slow(Rank):
    """Says that it starts, and starts when it is told to."""

    def __init__(self, begun, go_on):
        super().__init__()
        if self.rank:
            Path(begun).write_text("begun")
            Path(go_on).read_text()


def main():
    """Write what was seen, as JSON."""
    events = Queue()
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(simulate="2x1") as cluster,
        ThreadPoolExecutor() as threads,
    ):
        begun, go_on = (os.path.join(folder, name) for name in ("begun", "go on"))
        for pipe in (begun, go_on):
            os.mkfifo(pipe)
        cluster.subscribe(events.put)
        group = Slow.create_group(begun, go_on).launch(cluster, NodePlacementStrategy([0]), name="ranks")
        grown = threads.submit(group.grow, placement=NodePlacementStrategy([1]))
        Path(begun).read_text()
        drain(cluster.topology.nodes[1].node_id, 5 * DEADLINE_S)
        next_of(events, "NodeDraining")
        Path(go_on).write_text("go on")
        grown.result(DEADLINE_S)
        seen = [next_of(events, "GroupResized", 30.0).new_ranks for _ in range(2)]
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
