"""The documents' program, run as a user runs it."""

import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

from programs import run_program

# Its command line is refused by argparse there: "badly formed help string".
HYDRA_CANNOT = sys.version_info >= (3, 14) and metadata.version("hydra-core").startswith("1.3.")
pytestmark = [
    pytest.mark.skipif(HYDRA_CANNOT, reason="hydra-core 1.3 does not run on Python 3.14 and newer"),
    pytest.mark.system,
]
PROGRAM = Path(__file__).parents[2] / "examples" / "hello" / "main.py"


def run_hello(tmp_path, *overrides, **environment):
    return run_program(
        PROGRAM,
        f"hydra.run.dir={tmp_path}",
        *overrides,
        with_ray=True,
        env={**os.environ, **environment},
        cwd=tmp_path,
        timeout=240,
    )


@pytest.mark.ray(own=True)
def test_hello_prints_one_line_a_rank(tmp_path):
    done = run_hello(tmp_path, RLINF_SIMULATE="1x8")
    assert done.returncode == 0, done.stderr
    output = done.stdout + done.stderr
    for rank in range(4):
        assert output.count(f"Hello from TestWorker rank {rank}!") == 1, output
    assert "Traceback" not in output


def test_hello_with_too_few_accelerators_says_what_is_there(tmp_path):
    done = run_hello(tmp_path, "+cluster.simulate=1x2")
    assert done.returncode != 0
    assert "test_worker" in done.stderr
    assert "0-3" in done.stderr
