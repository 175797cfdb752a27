"""Writers of metrics: CSV, JSON lines, TensorBoard, Weights & Biases, MLflow, and a program's own."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from rlinf_scheduler.config.metrics import METRICS_PATH, MetricsConfig
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.metrics.steps import MetricsRow

_COLUMNS = ("step", "name", "value", "num_ranks", "time_s")
# What MLflow takes in the name of a metric, and how many it takes at a time.
_NOT_MLFLOW, _MLFLOW_AT_ONCE = re.compile(r"[^\w\-. :/]"), 1000


class MetricsWriter(Protocol):
    """Takes rows; all its methods are called on one thread, which is its own."""

    def write(self, rows: Sequence[MetricsRow]) -> None:
        """Write rows; what it raises is told, and the rows are counted as lost."""

    def close(self) -> None:
        """Finish what is written."""


class CsvWriter:
    """A line a value, in `metrics.csv`; an existing file is continued."""

    def __init__(self, folder: str) -> None:
        self._file = _opened(folder, "metrics.csv")
        self._csv = csv.writer(self._file)
        if not self._file.tell():
            self._csv.writerow(_COLUMNS)

    def write(self, rows: Sequence[MetricsRow]) -> None:
        """Write a line for each value."""
        for row in rows:
            self._csv.writerows(
                (row.step, name, value, row.num_ranks, f"{row.time_s:.3f}")
                for name, value in row.values.items()
            )
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class JsonLinesWriter:
    """A line a row, in `metrics.jsonl`; an existing file is continued."""

    def __init__(self, folder: str) -> None:
        self._file = _opened(folder, "metrics.jsonl")

    def write(self, rows: Sequence[MetricsRow]) -> None:
        """Write a line for each row; what JSON has no numbers for is text: "nan", "inf"."""
        for row in rows:
            values = {
                name: value if math.isfinite(value) else str(value) for name, value in row.values.items()
            }
            line = {
                "step": row.step,
                "time_s": round(row.time_s, 3),
                "num_ranks": row.num_ranks,
                "values": values,
            }
            self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardWriter:
    """Scalars in TensorBoard's event files, without torch or TensorFlow."""

    def __init__(self, folder: str, **options: Any) -> None:
        # Loaded by the jobs that want it, as the libraries of the other writers are.
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415

        self._event, self._summary = Event, Summary
        self._events = EventFileWriter(folder, **options)

    def write(self, rows: Sequence[MetricsRow]) -> None:
        """Write a summary for each row."""
        for row in rows:
            values = [self._summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
            summary = self._summary(value=values)
            self._events.add_event(self._event(wall_time=row.time_s, step=row.step, summary=summary))
        self._events.flush()

    def close(self) -> None:
        """Close the file."""
        self._events.close()


class WandbWriter:
    """A run of Weights & Biases; steps are its metric `step`, so that they may come in any order."""

    def __init__(self, folder: str, **options: Any) -> None:
        wandb = import_module("wandb")
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(dir=folder, **options)
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, rows: Sequence[MetricsRow]) -> None:
        """Log each row."""
        for row in rows:
            self._run.log({**row.values, "step": row.step})

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class MlflowWriter:
    """A run of MLflow; where nothing says where to, in `mlflow.db`."""

    def __init__(
        self,
        folder: str,
        *,
        tracking_uri: str | None = None,
        experiment: str = "rlinf",
        run_name: str | None = None,
        **tags: Any,
    ) -> None:
        from mlflow import MlflowClient  # noqa: PLC0415
        from mlflow.entities import Metric  # noqa: PLC0415

        self._metric = Metric
        Path(folder).mkdir(parents=True, exist_ok=True)
        own = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder}/mlflow.db"
        self._client = MlflowClient(tracking_uri or own)
        found = self._client.get_experiment_by_name(experiment)
        number = found.experiment_id if found is not None else self._client.create_experiment(experiment)
        self._run_id: str = self._client.create_run(number, run_name=run_name, tags=tags).info.run_id

    def write(self, rows: Sequence[MetricsRow]) -> None:
        """Log the values of all rows, in batches."""
        metrics = [
            self._metric(_NOT_MLFLOW.sub("_", name), value, int(row.time_s * 1000), row.step)
            for row in rows
            for name, value in row.values.items()
        ]
        for first in range(0, len(metrics), _MLFLOW_AT_ONCE):
            self._client.log_batch(self._run_id, metrics=metrics[first : first + _MLFLOW_AT_ONCE])

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._run_id)


# By name: the writer, and what it needs.
WRITERS: dict[str, tuple[Callable[..., MetricsWriter], str]] = {
    "csv": (CsvWriter, "csv"),
    "jsonl": (JsonLinesWriter, "json"),
    "tensorboard": (TensorBoardWriter, "tensorboard"),
    "wandb": (WandbWriter, "wandb"),
    "mlflow": (MlflowWriter, "mlflow"),
}


def writer_factory(name: str, config: MetricsConfig) -> Callable[[], MetricsWriter]:
    """Return what makes a writer.

    Raises:
        ConfigError: it is not known, or what it needs is not installed.
    """
    path = f"{METRICS_PATH}.writers.{name}"
    options = config.writers[name]
    if name in WRITERS:
        make, needs = WRITERS[name]
        if find_spec(needs) is None:
            raise ConfigError(f"{needs} is not installed here, where metrics are written", path=path)
        return partial(make, config.folder, **options)
    module, colon, function = name.partition(":")
    if not colon:
        known = ", ".join(WRITERS)
        raise ConfigError(
            f"there is no writer '{name}'; there are {known}",
            path=path,
            hint="one of yours is MODULE:FUNCTION",
        )
    try:
        own: Callable[..., MetricsWriter] = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"'{name}' cannot be imported: {error}", path=path) from error
    return partial(own, config.folder, **options)


def _opened(folder: str, name: str) -> Any:
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    return (path / name).open("a", encoding="utf-8", newline="")
