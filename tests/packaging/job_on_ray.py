"""A program: items, calls and weights of ranks on a Ray of its own; then what the driver says of each missing room."""

import sys

import numpy as np

from rlinf.scheduler import Channel, Cluster, PackedPlacementStrategy, Worker
from rlinf_scheduler.errors import ClusterError


class Rank(Worker):
    def exchange(self):
        if self.rank == 0:
            self.publish_weights("policy", {"w": np.full(4, 9)}, version=9)
            Channel.connect("items").put(np.arange(9))
            return 0
        self.fetch_weights("policy", into := {"w": np.zeros(4)})
        return Channel.connect("items").get().sum() + into["w"].sum()


def refusal(function):
    try:
        function()
    except ClusterError as error:
        return str(error)
    return "nothing"


if __name__ == "__main__":
    with Cluster(simulate="1x2") as cluster:
        items = Channel.create("items")
        ranks = Rank.create_group().launch(cluster, PackedPlacementStrategy(0, 1), name="ranks")
        assert ranks.exchange().wait() == [0, 72]
        for room, asked in {
            "durable": lambda: cluster.save("job", channels=[items]),
            "metrics": lambda: cluster.log_metrics({"loss": 1.0}, step=1),
            "tracing": lambda: cluster.trace("run.json"),
            "web": lambda: cluster.web_url,
        }.items():
            sys.stdout.write(f"{room}: {refusal(asked)}\n")
