"""Groups on a real device that grow and shrink while their ranks run NCCL."""

import json
from pathlib import Path

import pytest
from test_gpu_cluster import told_by

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def test_ranks_leave_their_communicator_and_meet_in_a_new_one(tmp_path):
    told = json.loads(told_by(tmp_path, Path(__file__).parent / "resized_on_one_device.py").splitlines()[-1])
    assert told["steps"] == [
        [[3, 3, 0, 2], [3, 3, 1, 2]],
        [[9, 9, 0, 3], [9, 9, 1, 3], [9, 9, 2, 3]],
        [[14, 14, 0, 2], [14, 14, 1, 2]],
    ]
    ways = [[[0, 1], [0, 1, 2]], [[0, 1, 2], [1, 2]]]
    assert [[way[:2] for way in rank] for rank in told["ways"]] == [ways, ways[1:]]
