"""The beginning of a rank's recording."""

from __future__ import annotations

import pickle
import sys
import time

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import Buffer
from rlinf_scheduler.host.protocol import Assignment
from rlinf_scheduler.tape.entries import Began
from rlinf_scheduler.tape.rank_tape import RankTape, recording_path


def open_recording(address: WorkerAddress, assignment: Assignment, topology: Buffer) -> RankTape:
    """The recorder of a rank's inputs.

    Args:
        address: the rank.
        assignment: what it is.
        topology: of the cluster, packed.

    Raises:
        RecordingError: there is a recording of the rank in that folder already, or there can be none.
    """
    began = Began(
        group=address.group,
        rank=address.rank,
        world_size=assignment.world_size,
        num_restarts=assignment.num_restarts,
        seed=assignment.seed,
        seeds_generators=assignment.seeds_generators,
        environment=assignment.environment,
        sys_path=list(sys.path),
        at=time.time(),
    )
    path = recording_path(assignment.record, address.group, address.rank, assignment.num_restarts)
    place = pickle.dumps((assignment.placement, assignment.hardware))
    return RankTape(path, began, [place, topology], assignment.record_bytes)
