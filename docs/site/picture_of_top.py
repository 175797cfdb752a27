"""Draws docs/top.svg: what `rlinf top` shows of a real job, on simulated nodes.

python docs/site/picture_of_top.py
"""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import numpy as np
from rich.console import Console

from rlinf.scheduler import Channel, Cluster, PackedPlacementStrategy, Worker
from rlinf_scheduler.cli.top_view import job_view

WIDTH, HEIGHT = 118, 40
# Long enough for rates to be steady.
LOOKS, PAUSE_S = 4, 1.0
PICTURE = Path(__file__).parents[1] / "top.svg"


class Env(Worker):
    """Makes observations, as fast as somebody takes them."""

    def run(self) -> None:
        """Until it is cancelled."""
        observations = self.connect_channel("observations")
        number = self.rank
        while not self.cancelled:
            observations.put(np.zeros(50_000, np.float32), queue_name=number % 4)
            number += 1


class Rollout(Worker):
    """Makes trajectories of observations, with the newest weights."""

    def run(self) -> None:
        """Until it is cancelled."""
        observations, trajectories = (
            self.connect_channel("observations"),
            self.connect_channel("trajectories"),
        )
        weights = {"policy": np.zeros(500_000, np.float32)}
        step = 0
        while not self.cancelled:
            step += 1
            if step % (20 if self.rank else 60) == 1:
                self.fetch_weights("policy", weights)
            for _ in range(8):
                observations.get(self.rank)
            trajectories.put(step, weight=512)


class Actor(Worker):
    """Learns from trajectories."""

    def train(self) -> None:
        """Until it is cancelled."""
        trajectories = self.connect_channel("trajectories")
        step = 0
        while not self.cancelled:
            if self.rank == 0:
                self.publish_weights("policy", {"policy": np.full(500_000, step, np.float32)}, step)
            trajectories.get_batch(batch_weight=4096, queue_name="validation" if self.rank else "default")
            step += 1


def main() -> None:
    """Run the job, look at it, and draw it."""
    with Cluster(simulate="2x4") as cluster:
        Channel.create("observations", maxsize=64)
        Channel.create("trajectories", maxsize=256)
        with cluster.starting():
            actor = Actor.create_group().launch(cluster, PackedPlacementStrategy(0, 1), name="actor")
            rollout = Rollout.create_group().launch(cluster, PackedPlacementStrategy(4, 7), name="rollout")
            env = Env.create_group().launch(cluster, PackedPlacementStrategy(2, 3), name="env")
        results = [actor.train(), rollout.run(), env.run()]
        for _ in range(LOOKS):
            time.sleep(PAUSE_S)
            status = cluster.status()
        console = Console(record=True, width=WIDTH, height=HEIGHT, file=io.StringIO(), force_terminal=True)
        console.print(job_view(status, WIDTH, HEIGHT))
        drawn = console.export_svg(title="rlinf top", unique_id="rlinf-top")
        # A page loads nothing from elsewhere, not fonts either.
        PICTURE.write_text(re.sub(r"@font-face \{[^}]*\}\s*", "", drawn), encoding="utf-8")
        for result in results:
            result.cancel()


if __name__ == "__main__":
    main()
