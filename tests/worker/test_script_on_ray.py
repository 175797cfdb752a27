"""What a single-file program defines itself: the same class on both sides of every call and channel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("one_file_program.py")


@pytest.mark.system
@pytest.mark.ray
def test_classes_of_a_script_are_the_same_everywhere(tmp_path, ray_address):
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
        env={**os.environ, "RAY_ADDRESS": ray_address},
    )
    assert done.returncode == 0, done.stderr
    assert "all the same" in done.stdout
