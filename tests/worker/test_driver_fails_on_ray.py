"""A driver whose I/O thread ends by a mistake."""

from pathlib import Path

import pytest

from programs import run_program

pytestmark = pytest.mark.system

PROGRAM = Path(__file__).with_name("driver_that_fails.py")


@pytest.mark.ray
def test_a_driver_whose_io_thread_ends_says_so_everywhere_and_can_open_another_cluster(tmp_path, ray_address):
    done = run_program(PROGRAM, ray_address, with_ray=True, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for what in ("call", "channel", "cluster"):
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"{what}:")]
        assert "I/O thread ended: SystemExit('a mistake')" in line
    assert "another one works" in done.stdout
    assert "this process leaves the job" in done.stderr
