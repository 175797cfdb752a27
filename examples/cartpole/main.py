"""CartPole, learned by three components that a YAML file places. See README.md beside this file.

python examples/cartpole/main.py --config-name collocated|disaggregated|hybrid
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from console import LearningProgress
from launch import launch
from outcome import summary_lines, write_outcome
from report import ChannelTraffic, TrainingReport
from rlinf.scheduler import Cluster, ComponentPlacement
from rlinf.scheduler.errors import ConfigError, SchedulerError
from rlinf_scheduler.cli.plan_table import render_plan
from schedule import COMPONENTS, schedule_of
from settings import Settings, parse_settings
from training import Training

DONE, NOT_LEARNED, WRONG_CONFIG, FAILED, INTERRUPTED = 0, 1, 2, 3, 130


def train(cfg: DictConfig, settings: Settings, console: Console) -> TrainingReport:
    """Open the cluster that the config describes, train on it, and leave nothing of it behind."""
    started = time.monotonic()
    with Cluster(cluster_cfg=cfg.cluster) as cluster:
        placement = ComponentPlacement(cfg, cluster)
        schedule = schedule_of({name: placement.placements(name) for name in COMPONENTS})
        print(render_plan(placement.plan), end="")
        console.print(schedule.describe(), highlight=False)
        cluster_s = time.monotonic() - started
        console.print(
            f"the cluster is up after {cluster_s:.1f} s; starting workers and channels", highlight=False
        )
        parts = launch(cluster, placement, schedule, settings)
        startup_s = time.monotonic() - started
        with LearningProgress(console, settings) as progress:
            training = Training(parts, schedule, settings, on_update=progress.show)
            asyncio.run(training.run())
        stats = {name: channel.stats() for name, channel in parts.channels.items()}
        return TrainingReport(
            mode=schedule.mode,
            updates=tuple(training.updates),
            startup_s=startup_s,
            training_s=time.monotonic() - started - startup_s,
            times=cluster.report(step="actor.update"),
            traffic={name: ChannelTraffic(one.num_puts, one.bytes_in) for name, one in stats.items()},
            window=settings.window,
            required_return=settings.required_return,
        )


def run(cfg: DictConfig, folder: Path, console: Console) -> int:
    """Train and report; the program's exit code."""
    settings = parse_settings(OmegaConf.to_container(cfg.training, resolve=True))
    metrics = {"folder": str(folder), "writers": cfg.metrics}
    OmegaConf.update(cfg, "cluster.metrics", metrics, force_add=True)
    (folder / "metrics.csv").unlink(missing_ok=True)  # of a training before
    report = train(cfg, settings, console)
    paths = write_outcome(report, folder)
    for line in summary_lines(report):
        console.print(line, highlight=False)
    console.print("written: " + ", ".join(map(str, paths)), highlight=False)
    return DONE if report.success else NOT_LEARNED


def exit_code(cfg: DictConfig, folder: Path) -> int:
    """What the program exits with; failures end in one readable message."""
    try:
        return run(cfg, folder, Console(soft_wrap=True))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG_CONFIG
    except SchedulerError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


@hydra.main(version_base=None, config_path="conf", config_name="disaggregated")
def main(cfg: DictConfig) -> None:
    """Hydra's entry point."""
    sys.exit(exit_code(cfg, Path(HydraConfig.get().runtime.output_dir)))


if __name__ == "__main__":
    main()
