"""The CartPole and the GRPO example, while a rank of the rollout is killed every few seconds; every item is counted.

The rollout's groups have `on_failure="restart"`: each rank that is killed comes back, gets the newest weights, and
serves again. The training has to come to its end; what the killed ranks had begun has to be done by others.

    python benchmarks/killed_ranks.py [cartpole] [grpo] [--seconds 60] [--every 5] [--seed 1]

Exits with 1 if an item was lost or learned from twice, or a process is left.
"""

from __future__ import annotations

import examples_path

# isort: split
import argparse
import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from omegaconf import OmegaConf

import launch as cartpole_launch
import settings as cartpole_settings
import training as cartpole_training
from post_training import channels as grpo_channels
from post_training import launch as grpo_launch
from post_training import settings as grpo_settings
from post_training import training as grpo_training
from rlinf.scheduler import Channel, Cluster, ComponentPlacement, WorkerGroup
from rlinf_scheduler.events import Event, WorkerLost, WorkerReturned
from rlinf_scheduler.proc import living, with_descendants
from schedule import COMPONENTS, schedule_of

CARTPOLE_PLACEMENT = {"env": "0-1", "rollout": "2-3", "actor": "4"}
GRPO_PLACEMENT = {
    "rollout": "0-1",
    "reward": {"node_group": "node", "placement": "0:0"},
    "inference": "2",
    "actor": "3-4",
}
SIMULATED = "1x5"
MANY = 10_000
# What ends by itself has ended so long after its job.
ENDED_WITHIN_S = 10.0


class Killer:
    """Kills a random living rank of a group every few seconds, from a thread of its own.

    Args:
        group: whose ranks.
        every_s: in seconds.
        seconds: for how long.
        seed: of which rank.

    Attributes:
        num_kills: how many it has killed.
        over: set when it is to stop, and when it has done enough.
    """

    def __init__(self, group: WorkerGroup[Any], every_s: float, seconds: float, seed: int) -> None:
        self.num_kills = 0
        self.over = threading.Event()
        self._group = group
        self._every_s = every_s
        self._until = time.monotonic() + seconds
        self._dice = random.Random(seed)
        self._thread = threading.Thread(target=self._run, name="killer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Kill no more."""
        self.over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self.over.wait(self._every_s):
            alive = [each for each in self._group.health() if each.state == "alive"]
            if alive:
                os.kill(self._dice.choice(alive).pid, signal.SIGKILL)
                self.num_kills += 1
            if time.monotonic() + self._every_s > self._until:
                self.over.set()


@dataclass
class Survival:
    """What became of a training.

    Attributes:
        example: which.
        num_kills: ranks killed.
        returns: for how long the ranks that came back were away, in seconds.
        num_steps: updates of the actor.
        num_items: items that went through the channel that the killed ranks take from.
        took_s: how long the training took, in seconds.
        problems: what was lost, or done twice, or left; empty if all is well.
    """

    example: str
    num_kills: int = 0
    returns: list[float] = field(default_factory=list)
    num_steps: int = 0
    num_items: int = 0
    took_s: float = 0.0
    problems: list[str] = field(default_factory=list)

    def hear(self, event: Event) -> None:
        """Note for how long ranks are away, and who died that nobody killed."""
        if isinstance(event, WorkerReturned):
            self.returns.append(event.after_s)
        if isinstance(event, WorkerLost) and event.group != "rollout":
            self.problems.append(f"rank {event.rank} of '{event.group}' died too: {event.reason}")

    def expect(self, what: str, found: float, wanted: float) -> None:
        """Note a count that is not as it should be."""
        if found != wanted:
            self.problems.append(f"{what}: {found:,} instead of {wanted:,}")

    def expect_settled(self, name: str) -> None:
        """Everything that was put into a channel is done with."""
        stats = Channel.connect(name).stats()
        self.num_items = stats.num_puts
        for what in ("num_items", "num_leased", "num_dead", "num_lost"):
            self.expect(f"{what} of channel '{name}'", getattr(stats, what), 0)


def cartpole(cluster: Any, outcome: Survival, kill: Callable[[WorkerGroup[Any]], Killer], steps: int) -> None:
    """Train CartPole for so many updates."""
    settings = cartpole_settings.parse_settings(_training_section("cartpole"))
    settings = replace(settings, max_updates=steps, stop_return=float("inf"), max_restarts=MANY)
    placement = _placement(cluster, CARTPOLE_PLACEMENT)
    schedule = schedule_of({name: placement.placements(name) for name in COMPONENTS})
    parts = cartpole_launch.launch(cluster, placement, schedule, settings)
    training = cartpole_training.Training(parts, schedule, settings)
    killer, began = kill(parts.rollout), time.monotonic()
    try:
        asyncio.run(training.run())
    finally:
        killer.stop()
        outcome.num_kills, outcome.took_s = killer.num_kills, time.monotonic() - began
    outcome.num_steps = len(training.updates)
    batch = parts.env.world_size * settings.env.num_envs * settings.env.steps
    # Every step of every environment was learned from, or waits to be.
    left = sum(len(trajectory) for trajectory in parts.channels["trajectories"].drain())
    collected = batch * (outcome.num_steps + schedule.max_lag)
    outcome.expect("steps of environments", training.updates[-1].num_steps + left, collected)
    outcome.expect_settled("questions")
    _end(parts.channels.values(), parts.env, parts.rollout, parts.actor)


def grpo(cluster: Any, outcome: Survival, kill: Callable[[WorkerGroup[Any]], Killer], steps: int) -> None:
    """Post-train for so many steps; a prompt that is learned from twice raises."""
    settings = grpo_settings.parse_settings(_training_section("grpo"))
    settings = replace(settings, num_steps=steps, stop_reward=2.0, max_restarts=MANY)
    parts = grpo_launch.launch(cluster, _placement(cluster, GRPO_PLACEMENT), settings)
    training = grpo_training.Training(parts, settings, settings.max_lag)
    killer, began = kill(parts.rollout), time.monotonic()
    try:
        training.run()
    finally:
        killer.stop()
        outcome.num_kills, outcome.took_s = killer.num_kills, time.monotonic() - began
    account_for_prompts(outcome, training, settings)
    opened = [Channel.connect(name) for name in grpo_channels.ALL]
    _end(opened, parts.rollout, parts.reward, parts.inference, parts.actor)


def account_for_prompts(
    outcome: Survival, training: grpo_training.Training, settings: grpo_settings.Settings
) -> None:
    """Every prompt of the steps was learned from, and every answer that was requested came to its group, once."""
    outcome.num_steps = len(training.steps)
    progress, per_step = training.progress, settings.grpo.prompts_per_step
    learned = progress.first_left + len(progress.ahead)
    outcome.expect("prompts learned from", learned, outcome.num_steps * per_step)
    outcome.expect_settled("requests")
    num_prompts = outcome.num_items // settings.grpo.group_size
    # What was written and scored twice is refused there.
    outcome.expect("groups put into 'groups'", Channel.connect("groups").stats().num_puts, num_prompts)


# Each with how many updates it makes, and how many a second where nobody is killed.
EXAMPLES = {"cartpole": (cartpole, 2.5), "grpo": (grpo, 1.5)}


def survive(example: str, seconds: float, every_s: float, seed: int, steps: int) -> Survival:
    """Run an example on a cluster of its own, with ranks killed, and see that no process is left."""
    outcome = Survival(example)
    train, _ = EXAMPLES[example]
    with Cluster(simulate=SIMULATED) as cluster:
        cluster.subscribe(outcome.hear)
        train(cluster, outcome, lambda group: Killer(group, every_s, seconds, seed), steps)
    left = _left(time.monotonic() + ENDED_WITHIN_S)
    if left:
        outcome.problems.append(f"processes left: {', '.join(left)}")
    return outcome


def report(outcome: Survival) -> str:
    """It in words."""
    away = (
        f"{fmean(outcome.returns):.1f} s on average, {max(outcome.returns):.1f} s at most"
        if outcome.returns
        else "-"
    )
    return "\n".join(
        [
            f"{outcome.example}: {outcome.num_steps} updates in {outcome.took_s:.0f} s, {outcome.num_items:,} items",
            f"  {outcome.num_kills} ranks killed, {len(outcome.returns)} came back, away for {away}",
            f"  {'; '.join(outcome.problems) or 'nothing lost, nothing twice, no process left'}",
        ]
    )


def _training_section(example: str) -> Any:
    base = OmegaConf.load(examples_path.EXAMPLES / example / "conf" / "base.yaml")
    return OmegaConf.to_container(base.training)


def _placement(cluster: Any, components: dict[str, Any]) -> ComponentPlacement:
    config = {"cluster": {"component_placement": components}}
    return ComponentPlacement(config, cluster.topology)


def _end(channels: Any, *groups: WorkerGroup[Any]) -> None:
    for group in groups:
        group.terminate()
    for channel in channels:
        channel.delete()


def _left(until: float) -> list[str]:
    """What this process has started and has not ended, but for Python's own janitor of shared memory."""
    while True:
        everybody = living()
        own = [process for process in everybody if process.pid == os.getpid()]
        found = [each for each in with_descendants(own, everybody) if each not in own]
        if not found or time.monotonic() > until:
            return [f"{each.name} ({each.pid})" for each in found]
        time.sleep(0.1)


def main() -> None:
    """Let it happen, and say what became of the items."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("examples", nargs="*", choices=[*EXAMPLES, []], help="which; all of them by default")
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long ranks are killed")
    parser.add_argument("--every", type=float, default=5.0, help="a rank is killed every so many seconds")
    parser.add_argument("--seed", type=int, default=1, help="of which rank is killed")
    parser.add_argument("--updates", type=int, help="how many; by default as many as take a little longer")
    options = parser.parse_args()
    good = True
    for example in options.examples or EXAMPLES:
        steps = options.updates or round(options.seconds * EXAMPLES[example][1])
        outcome = survive(example, options.seconds, options.every, options.seed, steps)
        print(report(outcome), flush=True)
        good = good and not outcome.problems
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
