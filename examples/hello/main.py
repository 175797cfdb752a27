"""The smallest program: four ranks, each on a GPU of the node group `a800`, say hello.

RLINF_SIMULATE=1x8 python examples/hello/main.py
"""

import hydra

from rlinf.scheduler import Cluster, ComponentPlacement, Worker


class TestWorker(Worker):
    def __init__(self):
        super().__init__()

    def run(self):
        self.log_info(f"Hello from TestWorker rank {self._rank}!")


@hydra.main(version_base=None, config_path=".", config_name="conf")
def main(cfg):
    cluster = Cluster(cluster_cfg=cfg.cluster)
    placement = ComponentPlacement(cfg, cluster)
    strategy = placement.get_strategy("test_worker")
    worker = TestWorker.create_group().launch(cluster, placement_strategy=strategy)
    worker.run().wait()


main()
