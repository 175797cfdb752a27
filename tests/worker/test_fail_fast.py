"""`cluster.fail_fast`: a call that fails ends its driver."""

from pathlib import Path

import pytest

from programs import run_program
from rlinf_scheduler.config import read_cluster_config
from rlinf_scheduler.errors import ConfigError

PROGRAM = Path(__file__).with_name("driver_that_fails_fast.py")


@pytest.mark.system
@pytest.mark.ray
@pytest.mark.parametrize("signals", ["left alone", "handles", "often"])
def test_a_call_that_fails_ends_its_driver_with_the_remote_traceback(tmp_path, ray_address, signals):
    done = run_program(PROGRAM, ray_address, signals, with_ray=True, timeout=240, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "ends this driver (`cluster.fail_fast: false` keeps it): " in done.stderr
    assert "rank 0 of 'failing' raised in work()" in done.stderr
    assert done.stderr.count("LookupError: no such sample") == 1
    assert "it went on" not in done.stdout
    assert ("it was ended" in done.stdout) == (signals != "handles")


def test_a_failure_is_a_value_unless_the_section_says_otherwise():
    assert read_cluster_config({"num_nodes": 1}).fail_fast is None
    assert read_cluster_config({"num_nodes": 1, "fail_fast": False}).fail_fast is False
    assert read_cluster_config({"num_nodes": 1, "fail_fast": True}).fail_fast
    with pytest.raises(ConfigError, match="this must be true or false, not 'yes'"):
        read_cluster_config({"num_nodes": 1, "fail_fast": "yes"})
