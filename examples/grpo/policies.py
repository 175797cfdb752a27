"""How long a step of four data-parallel ranks takes under the three policies that divide its groups.

Groups with heavy-tailed lengths go through a channel; each rank takes its parts by `channel.shard(...)` and computes
their gradients. A step lasts as long as its slowest rank. The ranks compute one after the other in this process, and
what is shown is CPU time: so it does not matter what else the machine does, nor how many cores it has.

    python examples/grpo/policies.py [folder]     # writes step_times.png; about a minute
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from post_training.grpo import Learner, group_advantages, micro_batches
from post_training.model import Transformer
from post_training.records import Answer, Group
from post_training.settings import Settings, parse_settings
from post_training.task import SortingTask
from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime

POLICIES = {"round_robin": "tab:gray", "least_loaded": "tab:orange", "balanced": "tab:blue"}
NUM_RANKS, NUM_STEPS, PROMPTS_PER_STEP = 4, 16, 64
Times = list[list[float]]  # by step, the seconds of each rank


def groups_of(settings: Settings) -> list[Group]:
    """Groups as a trained model writes them, rightly: as long as their prompts."""
    task = SortingTask(settings.task, settings.seed)
    dice = np.random.default_rng(settings.seed)
    groups = []
    for prompt in range(NUM_STEPS * settings.grpo.prompts_per_step):
        symbols = np.array(task.prompt(prompt), np.int64)
        tokens = np.array([*sorted(symbols.tolist()), task.end], np.int64)
        log_probs = np.full(len(tokens), -1.0, np.float32)
        size = settings.grpo.group_size
        answers = (Answer(tokens, log_probs, 0),) * size
        rewards = dice.random(size, np.float32)
        advantages = group_advantages(rewards.tolist())
        proximal = np.tile(log_probs, size)
        groups.append(Group(prompt, symbols, answers, rewards, advantages, proximal, 0))
    return groups


def measure(policy: str, groups: Sequence[Group], settings: Settings) -> tuple[Times, list[float]]:
    """The CPU seconds of each rank in each step, and the imbalance of each step."""
    task = SortingTask(settings.task, settings.seed)
    device = torch.device("cpu")
    learner = Learner(Transformer(settings.model, settings.task), settings.grpo, task.start, device)
    channel = Channel.create(policy)
    for group in groups:
        channel.put(group, weight=group.num_tokens)
    channel.end()
    per_step = settings.grpo.prompts_per_step
    shards = [
        channel.shard(rank, NUM_RANKS, policy=policy, batch_items=per_step) for rank in range(NUM_RANKS)
    ]
    times: Times = []
    imbalances = []
    for parts in zip(*shards, strict=True):
        num_written = sum(group.num_written for part in parts for group in part)
        seconds = []
        for part in parts:
            began = time.process_time()
            for micro_batch in micro_batches(part, settings.grpo.token_budget):
                learner.add_gradient(micro_batch, num_written)
            seconds.append(time.process_time() - began)
        times.append(seconds)
        imbalances.append(parts[0].imbalance)
    return times, imbalances


def draw(times: dict[str, Times], path: Path) -> None:
    """Draw the slowest rank's time by step, and the means with the share in which ranks wait for each other."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=[2, 1])
    for policy, color in POLICIES.items():
        slowest = [1e3 * max(ranks) for ranks in times[policy]]
        busy = [1e3 * fmean(ranks) for ranks in times[policy]]
        left.plot(slowest, color=color, marker=".", label=policy)
        right.bar(policy.replace("_", "\n"), fmean(busy), color=color)
        right.bar(
            policy.replace("_", "\n"),
            fmean(slowest) - fmean(busy),
            bottom=fmean(busy),
            color=color,
            alpha=0.35,
        )
    left.set(xlabel="step", ylabel="ms of the slowest of four ranks", ylim=(0, None), title="a step takes")
    left.legend(frameon=False)
    right.set(ylabel="ms", title="on average; pale: ranks wait")
    for axes in (left, right):
        axes.grid(alpha=0.3, axis="y")
    figure.savefig(path, dpi=120)


def main(folder: Path) -> None:
    """Measure, print a table and write `step_times.png`."""
    torch.set_num_threads(1)
    base = OmegaConf.load(Path(__file__).parent / "conf" / "base.yaml")
    settings = parse_settings(OmegaConf.to_container(base.training))
    settings = replace(settings, grpo=replace(settings.grpo, prompts_per_step=PROMPTS_PER_STEP))
    groups = groups_of(settings)
    times: dict[str, Times] = {}
    with LocalRuntime():
        measure("round_robin", groups[: 2 * PROMPTS_PER_STEP], settings)  # to warm up
        Channel.connect("round_robin").delete()
        print(f"{'policy':14} {'ms a step':>9} {'ranks busy':>10} {'imbalance':>10}")
        for policy in POLICIES:
            times[policy], imbalances = measure(policy, groups, settings)
            step_s = fmean(max(ranks) for ranks in times[policy])
            busy = fmean(fmean(ranks) for ranks in times[policy]) / step_s
            print(f"{policy:14} {1e3 * step_s:9.1f} {busy:10.0%} {fmean(imbalances):10.3f}")
    folder.mkdir(parents=True, exist_ok=True)
    draw(times, folder / "step_times.png")
    print(f"written: {folder / 'step_times.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "outputs/grpo"))
