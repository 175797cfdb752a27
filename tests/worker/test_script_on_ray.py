"""What a single-file program defines itself: the same class on both sides of every call and channel."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("one_file_program.py")


@pytest.mark.ray
def test_classes_of_a_script_are_the_same_everywhere(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=90, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "all the same" in done.stdout
