"""From a config to a trained model and an exit code."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console

from post_training.console import LearningProgress
from post_training.launch import launch
from post_training.model import WEIGHTS
from post_training.outcome import summary_lines, write_outcome
from post_training.report import StepReport, TrainingReport
from post_training.settings import Settings, parse_settings
from post_training.training import Training
from rlinf.scheduler import Cluster, ComponentPlacement
from rlinf.scheduler.errors import ConfigError, SchedulerError
from rlinf_scheduler.cli.plan_table import render_plan

DONE, NOT_LEARNED, WRONG_CONFIG, FAILED, INTERRUPTED = 0, 1, 2, 3, 130
CHECKPOINT = "checkpoint"


def mode_of(placement: ComponentPlacement) -> str:
    """What a placement is called, by who shares devices with whom."""
    if placement.shares("rollout", "actor"):
        return "collocated"
    return "hybrid" if placement.shares("inference", "actor") else "disaggregated"


def train(cfg: Any, settings: Settings, folder: Path, console: Console, *, resume: bool) -> TrainingReport:
    """Open the cluster that the config describes, train on it, and leave nothing of it behind."""
    started = time.monotonic()
    with Cluster(cluster_cfg=cfg.cluster) as cluster:
        placement = ComponentPlacement(cfg, cluster)
        mode = mode_of(placement)
        # Those who share devices take turns: nothing is gained by writing ahead.
        max_lag = 0 if mode == "collocated" else settings.max_lag
        if settings.model.lora_rank:
            mode = f"{mode}, adapters only"
        print(render_plan(placement.plan), end="")
        console.print(f"{mode}: answers are learned from at most {max_lag} versions late", highlight=False)
        parts = launch(cluster, placement, settings)
        startup_s = time.monotonic() - started
        with LearningProgress(console, settings) as progress:

            def on_step(step: StepReport) -> None:
                progress.show(step)
                cluster.log_metrics({"reward": step.reward, "exactly_right": step.exact}, step=step.version)

            training = Training(parts, settings, max_lag, folder / CHECKPOINT, on_step)
            training.run(resume=resume)
        if (handed_over := cluster.weights.get(WEIGHTS)) is not None:
            console.print(f"handed over at each step: {handed_over}", highlight=False)
        return TrainingReport(
            mode=mode,
            steps=tuple(training.steps),
            startup_s=startup_s,
            training_s=time.monotonic() - started - startup_s,
            times=cluster.report(step="actor.learn" if training.steps else None),
            window=settings.window,
            required_reward=settings.required_reward,
        )


def run(cfg: Any, folder: Path, console: Console, *, resume: bool) -> int:
    """Train and report; the program's exit code."""
    settings = parse_settings(OmegaConf.to_container(cfg.training, resolve=True))
    report = train(cfg, settings, folder, console, resume=resume)
    paths = write_outcome(report, folder)
    for line in summary_lines(report):
        console.print(line, highlight=False)
    console.print("written: " + ", ".join(map(str, paths)), highlight=False)
    return DONE if report.success else NOT_LEARNED


def exit_code(cfg: Any, folder: Path, *, resume: bool) -> int:
    """What the program exits with; failures end in one readable message."""
    try:
        return run(cfg, folder, Console(soft_wrap=True), resume=resume)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG_CONFIG
    except SchedulerError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
