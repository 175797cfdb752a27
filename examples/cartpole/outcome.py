"""What a training leaves behind: the learning curve as a picture, the summary as JSON and as a few lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from report import TrainingReport


def write_outcome(report: TrainingReport, folder: Path) -> tuple[Path, Path]:
    """Write `learning_curve.png` and `summary.json` into `folder`, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    curve, summary = folder / "learning_curve.png", folder / "summary.json"
    _draw_curve(report, curve)
    summary.write_text(json.dumps(summary_as_data(report), indent=2) + "\n")
    return curve, summary


def summary_as_data(report: TrainingReport) -> dict[str, object]:
    """The summary as plain data: where the time went, items and bytes by channel, returns and success."""
    last = report.updates[-1] if report.updates else None
    return {
        "mode": report.mode,
        "success": report.success,
        "final_mean_return": round(report.final_return, 1),
        "required_return": report.required_return,
        "episodes_judged": report.window,
        "updates": len(report.updates),
        "episodes": sum(len(update.returns) for update in report.updates),
        "env_steps": last.num_steps if last else 0,
        "max_lag": max((update.lag for update in report.updates), default=0),
        "startup_s": round(report.startup_s, 2),
        "training_s": round(report.training_s, 2),
        "times": report.times.to_dict(),
        "channels": {name: asdict(traffic) for name, traffic in report.traffic.items()},
    }


def summary_lines(report: TrainingReport) -> Iterator[str]:
    """The summary for people."""
    last = report.updates[-1]
    yield from str(report.times).splitlines()
    yield "through the channels"
    for name, traffic in report.traffic.items():
        yield f"  {name:14} {traffic.items:8,} items  {traffic.size_bytes / 1e6:8.2f} MB"
    verdict = "reached" if report.success else "NOT reached"
    yield (
        f"{report.mode}: mean return of the last {report.window} episodes {report.final_return:.1f} "
        f"(required {report.required_return:.0f}: {verdict}) after {len(report.updates)} updates and "
        f"{last.num_steps:,} steps in {report.startup_s:.1f} s of starting and {report.training_s:.1f} s of training"
    )


def _draw_curve(report: TrainingReport, path: Path) -> None:
    # It takes a while to load, and only this needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    ends = [update.num_steps for update in report.updates for _ in update.returns]
    returns = [episode_return for update in report.updates for episode_return in update.returns]
    axes.scatter(ends, returns, s=9, alpha=0.35, color="tab:gray", linewidths=0, label="an episode")
    steps = [update.num_steps for update in report.updates]
    means = [update.mean_return for update in report.updates]
    axes.plot(steps, means, color="tab:blue", linewidth=2, label=f"mean of the last {report.window}")
    axes.axhline(report.required_return, color="tab:green", linestyle="--", linewidth=1, label="required")
    axes.set(
        xlabel="environment steps learned from",
        ylabel="return",
        title=f"CartPole, {report.mode}: {report.final_return:.0f} after {report.training_s:.0f} s",
        ylim=(0, None),
        xlim=(0, None),
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", frameon=False)
    figure.savefig(path, dpi=120)
