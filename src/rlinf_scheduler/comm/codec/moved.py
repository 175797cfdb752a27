"""Pickles of earlier versions, as checkpoints keep them: they name classes where these were."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from typing import Any, NamedTuple

_OURS = "rlinf_scheduler."
# Where a class of this package is, by its place in earlier versions whose files are read.
MOVED = {
    "channel.batch.ShardBatch": "channel.shard.ShardBatch",
    "channel.report.ChannelReport": "channel.inspecting.ChannelReport",
    "observe.notes.Doing": "observe.process_stats.Activity",
    "observe.notes.Frame": "observe.process_stats.Frame",
    "observe.notes.LinkNote": "observe.process_stats.LinkNote",
    "observe.notes.RunningCall": "observe.process_stats.RunningCall",
    "observe.notes.Silent": "observe.process_stats.Silent",
    "observe.notes.Stack": "observe.process_stats.Stack",
    "observe.notes.TurnNote": "observe.process_stats.TurnNote",
    "observe.queue_waits.Ends": "observe.graph.Ends",
    "observe.times.GroupTimes": "observe.report.GroupTimes",
    "observe.times.MethodTimes": "observe.report.MethodTimes",
    "observe.times.PhaseTimes": "observe.report.PhaseTimes",
    "observe.times.Spent": "observe.report.Spent",
    "observe.times.WaitTimes": "observe.report.WaitTimes",
    "observe.trace_file.TraceContent": "observe.job_trace.TraceContent",
    "observe.trace_file.TraceFile": "observe.job_trace.TraceFile",
    "observe.status.GoneProcess": "observe.process_stats.GoneProcess",
    "queueing.ids.ItemId": "comm.codec.moved.ItemId",
    "queueing.item.Tapped": "queueing.item.SubscriptionName",
    "worker.health.RankHealth": "worker.group_calls.RankHealth",
    "tape.ids.ItemId": "comm.codec.moved.ItemId",
}


class ItemId(NamedTuple):
    """An item's producer, with its process, and number: what batches of channels that were recorded had in `ids`."""

    producer: str
    process_id: str
    number: int


class _MovedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        now = MOVED.get(f"{module}.{name}".removeprefix(_OURS))
        if now is not None and module.startswith(_OURS):
            module, _, name = f"{_OURS}{now}".rpartition(".")
        return super().find_class(module, name)


def loads_of_any_version(data: Any, buffers: Iterable[Any] = ()) -> Any:
    """Return what this version or an earlier one has pickled; slower than `pickle.loads`."""
    return _MovedUnpickler(io.BytesIO(data), buffers=buffers).load()
