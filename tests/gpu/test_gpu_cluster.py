"""Jobs on a real device, each a program of its own."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from rlinf_scheduler.hardware.vendors import find_devices

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]


def told_by(folder, *command):
    """What a program prints that runs in a folder, in an environment without a mask."""
    environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        timeout=580,
        check=True,
    )
    return done.stdout.decode()


def test_ranks_that_share_a_device_see_it_exchange_tensors_and_take_turns(tmp_path):
    told = json.loads(told_by(tmp_path, Path(__file__).parent / "on_one_device.py").splitlines()[-1])
    devices = find_devices("NVIDIA")
    for rank in told["seen"]:
        assert (rank["device"], rank["count"]) == ("cuda:0", 1)
        assert rank["uuid"] == devices[0].uuid
        assert rank["mask"] == ",".join(rank["planned"])
    assert told["hidden"] == {"count": 0, "mask": ""}
    assert told["whole"]["count"] == len(devices)
    assert told["nccl"] == 10
    (given, weight), (sums, fetched, all_there) = told["exchanged"]
    assert sums == [given] * 3
    assert fetched == weight
    assert all_there
    assert [is_same for _, is_same in told["turns"]] == [True, True]
    turns = sorted(turn for of_rank, _ in told["turns"] for turn in of_rank)
    assert len(turns) == 6
    assert all(turn[2:] == ["cuda:0", "cpu", True] for turn in turns)
    assert all(one[1] <= other[0] for one, other in pairwise(turns)), "one after the other"


def test_the_post_training_example_learns_on_a_device(tmp_path):
    told_by(
        tmp_path, ROOT / "examples" / "grpo" / "main.py", "--config-name", "collocated", "cluster.simulate=null",
        "training.device=cuda", "training.num_steps=5", "training.required_reward=0",
        "cluster.component_placement.rollout=0:0", "cluster.component_placement.reward.placement='0:0'",
        "cluster.component_placement.inference=0:0", "cluster.component_placement.actor=0:0",
    )  # fmt: skip


def test_the_cartpole_example_learns_on_a_device(tmp_path):
    told_by(
        tmp_path, ROOT / "examples" / "cartpole" / "main.py", "--config-name", "collocated", "cluster.simulate=null",
        "training.device=cuda", "training.max_updates=5", "training.required_return=0",
        "cluster.component_placement.env='0:0-1'", "cluster.component_placement.rollout='0:0'",
        "cluster.component_placement.actor='0:0'",
    )  # fmt: skip
