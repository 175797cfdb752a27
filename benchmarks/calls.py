"""Calls on a group against plain Ray actor calls, and a launch against starting plain Ray actors.

Both sides run in turn on one node; what counts is the ratio. Times are medians.

    python benchmarks/calls.py [--only NAME] [--quick]
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import ray
import torch

from measure import (
    KIB,
    MIB,
    Options,
    Table,
    compare,
    duration_text,
    in_turn,
    ratio_text,
    read_options,
    repeated,
    stopwatch,
)
from one_node import one_node
from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy, Worker
from rlinf_scheduler.errors import ChannelClosed

NUM_RANKS = 4
IN_FLIGHT = 200
TIMEOUT_S = 60.0

Work = Callable[[], object]


class Echo(Worker):
    """Returns what it is given."""

    def echo(self, value: object) -> object:
        """Return `value`."""
        return value

    def answer(self, questions: Channel) -> None:
        """Answer every question with itself."""
        with suppress(ChannelClosed):
            while True:
                for request in questions.next_requests(IN_FLIGHT):
                    request.reply(request.item)


@ray.remote(num_cpus=0)
class PlainEcho:
    """The same as a bare Ray actor."""

    def echo(self, value: object) -> object:
        """Return `value`."""
        return value


class Bench:
    """Four ranks of both sides."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._strategy = NodePlacementStrategy([0] * NUM_RANKS)
        self.group = self._launch("echo")
        self.one = self.group.execute_on(0)
        self.actors = self._start_actors()
        self.questions = Channel.create("questions")
        strategy = NodePlacementStrategy([0])
        answering = Echo.create_group().launch(cluster, placement_strategy=strategy, name="answering")
        answering.answer(self.questions)

    def calls(self) -> dict[str, tuple[Work, Work, int]]:
        """Every workload: ours, theirs, and how many calls each makes."""
        small, medium, large = "x" * 100, b"x" * KIB, b"x" * MIB
        array, tensor = np.ones(MIB, np.uint8), torch.ones(MIB, dtype=torch.uint8)
        one, group, actors, questions = self.one, self.group, self.actors, self.questions
        return {
            "one rank, 100 B, one at a time": (
                lambda: one.echo(small).wait(TIMEOUT_S),
                lambda: _get(actors[0].echo.remote(small)),
                1,
            ),
            "one rank, 1 KiB, one at a time": (
                lambda: one.echo(medium).wait(TIMEOUT_S),
                lambda: _get(actors[0].echo.remote(medium)),
                1,
            ),
            f"one rank, 100 B, {IN_FLIGHT} in flight": (
                lambda: [result.wait(TIMEOUT_S) for result in [one.echo(small) for _ in range(IN_FLIGHT)]],
                lambda: _get([actors[0].echo.remote(small) for _ in range(IN_FLIGHT)]),
                IN_FLIGHT,
            ),
            f"all {NUM_RANKS} ranks, 100 B, one at a time": (
                lambda: group.echo(small).wait(TIMEOUT_S),
                lambda: _get([actor.echo.remote(small) for actor in actors]),
                1,
            ),
            "ask through a channel, 100 B": (
                lambda: questions.ask(small, timeout_s=TIMEOUT_S),
                lambda: _get(actors[0].echo.remote(small)),
                1,
            ),
            f"ask through a channel, 100 B, {IN_FLIGHT} in flight": (
                lambda: [
                    handle.wait(TIMEOUT_S)
                    for handle in [questions.ask(small, async_op=True) for _ in range(IN_FLIGHT)]
                ],
                lambda: _get([actors[0].echo.remote(small) for _ in range(IN_FLIGHT)]),
                IN_FLIGHT,
            ),
            "ask through a channel, an array of 1 MiB": (
                lambda: questions.ask(array, timeout_s=TIMEOUT_S),
                lambda: _get(actors[0].echo.remote(array)),
                1,
            ),
            "one rank, 1 MiB there and back": (
                lambda: one.echo(large).wait(TIMEOUT_S),
                lambda: _get(actors[0].echo.remote(large)),
                1,
            ),
            "one rank, an array of 1 MiB there and back": (
                lambda: one.echo(array).wait(TIMEOUT_S),
                lambda: _get(actors[0].echo.remote(array)),
                1,
            ),
            "one rank, a tensor of 1 MiB there and back": (
                lambda: one.echo(tensor).wait(TIMEOUT_S),
                lambda: _get(actors[0].echo.remote(tensor)),
                1,
            ),
            f"all {NUM_RANKS} ranks, an array of 1 MiB there and back": (
                lambda: group.echo(array).wait(TIMEOUT_S),
                lambda: _get([actor.echo.remote(array) for actor in actors]),
                1,
            ),
        }

    def launch_ours(self) -> None:
        """A group launched, called and ended."""
        group = self._launch("launched")
        group.echo(0).wait(TIMEOUT_S)
        group.terminate()

    def launch_theirs(self) -> None:
        """As many plain actors started, called and ended."""
        for actor in self._start_actors():
            ray.kill(actor)

    def _launch(self, name: str) -> Any:
        return Echo.create_group().launch(self._cluster, placement_strategy=self._strategy, name=name)

    def _start_actors(self) -> list[Any]:
        actors = [PlainEcho.remote() for _ in range(NUM_RANKS)]
        _get([actor.echo.remote(0) for actor in actors])
        return actors


def _get(references: Any) -> Any:
    return ray.get(references, timeout=TIMEOUT_S)


def measure_all(bench: Bench, options: Options) -> None:
    """Print one line a workload."""
    table = Table("time of a call", ("group", "Ray actor", "ratio"))

    def row(name: str, ours: float, theirs: float) -> None:
        table.row(name, duration_text(ours), duration_text(theirs), ratio_text(theirs / ours))

    for name, (ours, theirs, calls) in bench.calls().items():
        if options.wants(name):
            a, b = compare([repeated(ours), repeated(theirs)], options)
            row(name, a / calls, b / calls)
    name = f"launch {NUM_RANKS} ranks, call each, end them"
    if options.wants(name):
        sides = repeated(bench.launch_ours), repeated(bench.launch_theirs)
        row(name, *in_turn(sides, (1, 1), options.rounds))


def main() -> None:
    """Print the table."""
    options = read_options("Calls on a group against plain Ray actor calls.")
    with stopwatch("calls.py"), one_node() as cluster:
        measure_all(Bench(cluster), options)


if __name__ == "__main__":
    main()
