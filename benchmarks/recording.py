"""What it costs to record: a put and a get of one process, of a channel that it holds itself.

"plain" records nothing; of "channel" the channel is recorded (`Channel.record`, its items without their bytes), of
"payload" with them, of "rank" the process's inputs (`launch(..., record=folder)`). The four take turns. It is the
process's processor time, of all its threads: what else runs on the machine does not add to it. A disk may take longer.

    python benchmarks/recording.py [--only SIZE] [--quick]
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from measure import (
    KIB,
    MIB,
    Side,
    Table,
    compare,
    duration_text,
    ratio_text,
    read_options,
    size_text,
)
from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime
from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.host.info import packed_topology
from rlinf_scheduler.host.protocol import Assignment
from rlinf_scheduler.host.recording import open_recording
from rlinf_scheduler.planning import Node, Placement, Topology
from rlinf_scheduler.session import set_current
from rlinf_scheduler.tape.tape import Tape

SIZES = (KIB, 64 * KIB, MIB, 16 * MIB)
KINDS = ("plain", "channel", "payload", "rank")


@contextmanager
def recorded_channel(kind: str, folder: Path) -> Iterator[Channel]:
    """A channel in a job of its own, recorded in that way."""
    with LocalRuntime(own_name="actor:0") as runtime:
        if kind == "rank":
            place = Placement(rank=0, node_id="", node_rank=0)
            assignment = Assignment(place, Node(), 1, {}, 1, "", 0, record=str(folder))
            tape = open_recording(WorkerAddress("actor", 0), assignment, packed_topology(Topology.parse("1")))
            runtime.provide(Tape, tape)
        channel = Channel.create(kind)
        if kind in ("channel", "payload"):
            channel.record(folder / f"{kind}.rec", payload=kind == "payload")
        channel.qsize()  # it is connected, and needs no current session any more
        yield channel
        set_current(runtime)


def there_and_back(channel: Channel, item: np.ndarray) -> Side:
    """The side that puts an item and gets it."""

    def run(count: int) -> float:
        began = time.process_time()
        for _ in range(count):
            channel.put(item)
            channel.get()
        return time.process_time() - began

    return run


def main() -> None:
    """Print a line for each size."""
    options = read_options(__doc__ or "", rounds=9, budget_s=0.1)
    table = Table("put and get of an array", [*KINDS, *(f"{kind} / plain" for kind in KINDS[1:])])
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        channels = [stack.enter_context(recorded_channel(kind, Path(folder))) for kind in KINDS]
        for size in SIZES:
            if options.wants(size_text(size)):
                item = np.ones(size, np.uint8)
                took = compare([there_and_back(channel, item) for channel in channels], options)
                times = map(duration_text, took)
                table.row(size_text(size), *times, *(ratio_text(each / took[0]) for each in took[1:]))


if __name__ == "__main__":
    main()
