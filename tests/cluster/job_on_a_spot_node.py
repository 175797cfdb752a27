"""A job on two hosts, one of which is to be given back: a program that says what it heard, as JSON."""

import json
import sys
from queue import Queue

from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker
from rlinf_scheduler.events import GroupResized, NodeDraining, NodeLost, RankDrained

DEADLINE_S = 90.0


class Rank(Worker):
    """Answers."""

    def who(self):
        """Its number."""
        return self.rank


def main():
    """Say that it runs, then what it heard until the node was gone."""
    events, heard = Queue(), {}
    with Cluster(num_nodes=2) as cluster:
        cluster.subscribe(
            lambda each: (
                isinstance(each, NodeDraining | GroupResized | RankDrained | NodeLost) and events.put(each)
            )
        )
        group = Rank.create_group().launch(cluster, NodePlacementStrategy([0, 1]), name="spread")
        sys.stdout.write(f"{group.who().wait(DEADLINE_S)}\n")
        sys.stdout.flush()
        while "NodeLost" not in heard:
            event = events.get(timeout=DEADLINE_S)
            heard[type(event).__name__] = event
        drained = heard["NodeDraining"]
        seen = {
            "order": list(heard),
            "draining": [drained.node_rank, drained.left_s],
            "forced": heard["RankDrained"].forced,
            "answers": group.who().wait(DEADLINE_S),
        }
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
