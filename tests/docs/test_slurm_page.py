"""The batch script of the page on Slurm, run on two machines by what stands for `srun`."""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from machine_fixtures import MachinePair
from page_programs import BLOCK, programs_of, save
from rlinf.testing.machines import MachinesUnavailable
from waits import wait_until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "run-on-slurm.md").read_text(encoding="utf-8")
SCRIPT = next(block[2] for block in BLOCK.finditer(PAGE) if block[1] == "sh")
RLINF = "import sys; from rlinf_scheduler.cli.main import main; sys.argv[0] = 'rlinf'; main()"
# Runs a command on every node of the allocation, passes SIGTERM on, and waits for all, as srun does.
SRUN = """\
shift
for node in 0 1; do
    eval "namespace=\\$NAMESPACE_$node"
    SLURM_NODEID=$node TMPDIR=$JOB_FOLDER/node$node nsenter --net="$namespace" "$@" &
    tasks="$tasks $!"
done
trap 'kill -TERM $tasks' TERM
wait $tasks; wait $tasks"""


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def allocation():
    """A folder, and an environment as Slurm gives it to a batch script, on the first of two machines."""
    # Ray's sockets have long names: a short folder.
    with tempfile.TemporaryDirectory(prefix="sl", dir="/tmp") as name:
        folder = Path(name)
        for part in ("bin", "venv/bin", "node0", "node1"):
            (folder / part).mkdir(parents=True)
        (folder / "venv" / "bin" / "activate").touch()
        program(folder / "bin" / "rlinf", f'exec {sys.executable} -c "{RLINF}" "$@"')
        program(folder / "bin" / "python", f'exec {sys.executable} "$@"')
        program(folder / "bin" / "srun", SRUN)
        program(folder / "bin" / "hostname", "echo 192.0.2.1 203.0.113.1")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "RLINF_"))}
        try:
            pair = MachinePair()
        except MachinesUnavailable as error:
            pytest.skip(str(error))
        with pair:
            yield (
                pair.left,
                folder,
                kept
                | {
                    "HOME": name,
                    "JOB_FOLDER": name,
                    "TMPDIR": f"{name}/node0",
                    "PATH": f"{folder}/bin:{os.environ['PATH']}",
                    "PYTHONPATH": str(ROOT / "src"),
                    "NAMESPACE_0": pair.left.namespace,
                    "NAMESPACE_1": pair.right.namespace,
                    "SLURM_JOB_ID": "4711",
                    "SLURM_NNODES": "2",
                    "SLURM_SUBMIT_DIR": name,
                },
            )


def processes_with(text):
    """The command lines of living processes in which it stands."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().decode(errors="replace"))
    return [line for line in found if text in line]


@pytest.mark.ray(own=True)
def test_the_script_runs_the_program_on_all_nodes_and_leaves_nothing(allocation):
    machine, folder, environment = allocation
    save(PAGE, folder)
    (train,) = programs_of(PAGE)
    (folder / train.file).write_text(train.code, encoding="utf-8")
    (folder / "train.sbatch").write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        ["bash", folder / "train.sbatch"],
        env=environment,
        preexec_fn=machine.enter,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-2:] == ["rank 0 runs on node 0", "rank 1 runs on node 1"]
    assert list((folder / ".rlinf").iterdir()) == []
    wait_until(lambda: processes_with(str(folder)) == [])
