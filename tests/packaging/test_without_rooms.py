"""Rooms may be left out of an installation, each and all: a job works, and says which is missing if one is asked."""

import contextlib
import os
import re
from pathlib import Path

import pytest

from programs import Program
from rlinf_scheduler.rooms import ROOMS

pytestmark = pytest.mark.system

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DEADLINE_S = 120.0
# What a program on them imports beside the library, and takes seconds.
OTHERS = (
    "numpy",
    "ray.cluster_utils",
    "msgspec",
    "pydantic",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "rich.console",
    "typer",
    "omegaconf",
)
CONTRACTS = (
    "tests/channel/test_channel_contract.py",
    "tests/worker/test_calls.py",
    "tests/weights/test_weights.py",
)


def without(tree, rooms):
    """Make a tree of sources as it is without some rooms."""
    package = tree / "rlinf_scheduler"
    package.mkdir(parents=True)
    (tree / "rlinf").symlink_to(ROOT / "src/rlinf")
    for each in (ROOT / "src/rlinf_scheduler").iterdir():
        if each.name not in rooms:
            (package / each.name).symlink_to(each)
    for room in rooms:  # what is uninstalled may leave a folder behind
        (package / room / "__pycache__").mkdir(parents=True)
    return tree


@contextlib.contextmanager
def started(tree, *command):
    """A program on such a tree, forked from a process that has imported nothing of the library; what it has printed."""
    path = os.pathsep.join(map(str, (tree, ROOT / "tests/support")))
    said = tree.parent / "said"
    with said.open("w") as file:
        pipes = {"stdout": file.fileno(), "stderr": file.fileno()}
        env = os.environ | {"PYTHONPATH": path}
        program = Program(*command, imports=OTHERS, cwd=ROOT, env=env, **pipes)
    with program:
        yield program, said


def ended(program, said):
    status = program.wait(DEADLINE_S)
    assert status == 0, said.read_text()
    return said.read_text()


@pytest.fixture(scope="module")
def left_out(tmp_path_factory):
    """All programs, begun at once: one for each room that is missing."""
    folder = tmp_path_factory.mktemp("trees")
    asked = {
        room: [room] if room != "tracing" else [] for room in ROOMS
    }  # which a driver with a cluster asks
    with contextlib.ExitStack() as programs:
        yield {
            room: programs.enter_context(
                started(without(folder / room / "src", {room}), HERE / "small_job.py", *words)
            )
            for room, words in asked.items()
        }


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_job_works_without(room, left_out):
    assert re.fullmatch(f"({room}: .*{room} is not installed: .*)?", ended(*left_out[room]), re.DOTALL)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return without(tmp_path_factory.mktemp("bare") / "src", ROOMS)


def test_contracts_of_channels_groups_and_weights_hold_without_any(bare):
    options = ("-q", "-x", "-p", "no:cacheprovider", "-k", "not ray and not interrupt and not kill")
    run = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    with started(bare, "-c", run, *options, *CONTRACTS) as contracts:
        said = ended(*contracts)
    assert int(re.search(r"(\d+) passed", said)[1]) > 100, said


@pytest.mark.ray(own=True)
def test_ranks_on_ray_work_without_any(bare):
    with started(bare, HERE / "job_on_ray.py") as job:
        said = ended(*job)
    for room in ("durable", "metrics", "tracing", "web"):
        assert f"{room}: {room} is not installed: " in said
