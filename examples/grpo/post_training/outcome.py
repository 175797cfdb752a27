"""What a training leaves behind: the learning curve as a picture, the summary as JSON and as a few lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median

from post_training.report import TrainingReport, mean_reward


def write_outcome(report: TrainingReport, folder: Path) -> tuple[Path, ...]:
    """Write `learning_curve.png`, `step_times.png` and `summary.json` into `folder`, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    curve, times, summary = (
        folder / name for name in ("learning_curve.png", "step_times.png", "summary.json")
    )
    _draw_curve(report, curve)
    _draw_times(report, times)
    summary.write_text(json.dumps(summary_as_data(report), indent=2) + "\n")
    return curve, times, summary


def summary_as_data(report: TrainingReport) -> dict[str, object]:
    """The summary as plain data: rewards, tokens, lag, where the time went."""
    steps = report.steps
    return {
        "mode": report.mode,
        "success": report.success,
        "final_reward": round(report.final_reward, 3),
        "required_reward": report.required_reward,
        "first_version": steps[0].version if steps else 0,
        "last_version": steps[-1].version if steps else 0,
        "tokens": sum(step.num_tokens for step in steps),
        "max_lag": max((step.lag for step in steps), default=0),
        "mean_imbalance": round(fmean(step.imbalance for step in steps), 3) if steps else 0.0,
        "startup_s": round(report.startup_s, 2),
        "training_s": round(report.training_s, 2),
        "rewards": [round(step.reward, 3) for step in steps],
        "shares": {name: asdict(shares) for name, shares in report.shares.items()},
        "times": report.times.to_dict(),
    }


def summary_lines(report: TrainingReport) -> Iterator[str]:
    """The summary for people."""
    yield from str(report.times).splitlines()
    moved = [
        f"{name} {shares.moving:.1%}"
        + (f" (and waits for them {shares.awaiting:.1%})" if shares.awaiting else "")
        for name, shares in report.shares.items()
        if shares.moving or shares.awaiting
    ]
    yield f"time for moving weights: {', '.join(moved)}"
    if not report.steps:
        yield f"{report.mode}: nothing was left to learn"
        return
    last = report.steps[-1]
    verdict = "reached" if report.success else "NOT reached"
    yield (
        f"{report.mode}: mean reward of the last {report.window} steps {report.final_reward:.2f} "
        f"(required {report.required_reward:.2f}: {verdict}), {last.exact:.0%} exactly right, "
        f"after step {last.version} in {report.startup_s:.1f} s of starting and {report.training_s:.1f} s of training"
    )


def _draw_curve(report: TrainingReport, path: Path) -> None:
    # It takes a while to load, and only this needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(8, 6), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, sharex=True, height_ratios=[2, 1])
    steps = report.steps
    versions = [step.version for step in steps]
    means = [mean_reward(steps[: end + 1], report.window) for end in range(len(steps))]
    above.plot(
        versions, [step.reward for step in steps], color="tab:gray", alpha=0.5, label="reward of a step"
    )
    above.plot(versions, means, color="tab:blue", linewidth=2, label=f"mean of the last {report.window}")
    above.plot(versions, [step.exact for step in steps], color="tab:orange", label="exactly right")
    above.axhline(report.required_reward, color="tab:green", linestyle="--", linewidth=1, label="required")
    above.set(
        ylabel="share",
        ylim=(0, 1.15),
        yticks=[0, 0.2, 0.4, 0.6, 0.8, 1],
        title=f"Sorting, {report.mode}: reward {report.final_reward:.2f} after {report.training_s:.0f} s",
    )
    above.legend(loc="upper left", ncols=4, frameon=False)
    below.plot(versions, [max(step.lengths) for step in steps], color="tab:gray", label="longest")
    below.plot(versions, [median(step.lengths) for step in steps], color="tab:blue", label="median")
    below.set(xlabel="step", ylabel="tokens of an answer", ylim=(0, None))
    below.legend(loc="center left", frameon=False)
    for axes in (above, below):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def _draw_times(report: TrainingReport, path: Path) -> None:
    """Draw for what a step's time is spent on the ranks of each component."""
    # It takes a while to load, and only this needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(8, 3), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    step_ms = 1e3 * report.training_s / max(1, len(report.steps))
    names = list(report.shares)
    ends = [0.0] * len(names)
    for what, label, color in (
        ("working", "working", "tab:blue"),
        ("moving", "publishing or copying weights", "tab:red"),
        ("awaiting", "awaiting newer weights", "tab:orange"),
    ):
        widths = [step_ms * getattr(shares, what) for shares in report.shares.values()]
        axes.barh(names, widths, left=ends, color=color, label=label)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    rest = [max(0.0, step_ms - end) for end in ends]
    axes.barh(names, rest, left=ends, color="whitesmoke", label="waiting for others, or idle")
    for row, (shares, end) in enumerate(zip(report.shares.values(), ends, strict=True)):
        if shares.moving or shares.awaiting:
            axes.text(end, row, f" weights {shares.moving + shares.awaiting:.1%}", va="center")
    axes.set(xlabel="ms of a step", xlim=(0, step_ms), title=f"What the ranks do in a step, {report.mode}")
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    figure.savefig(path, dpi=120)
