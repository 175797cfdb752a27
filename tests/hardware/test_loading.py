"""What a process loads of this package when it is given accelerators only."""

import subprocess
import sys

import pytest

from rlinf_scheduler import hardware


def test_settings_are_not_loaded_by_a_worker_without_declared_hardware_nor_by_every_command():
    loaded = "rlinf_scheduler.worker, rlinf_scheduler.host.host, rlinf_scheduler.cli.main"
    program = f"import sys; import {loaded}; print('pydantic' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


@pytest.mark.parametrize("name", hardware.__all__)
def test_every_name_of_the_package_is_there(name):
    assert getattr(hardware, name).__name__ == name


def test_a_name_that_is_not_there_is_named():
    with pytest.raises(AttributeError, match=r"'rlinf_scheduler.hardware' has no attribute 'Robots'"):
        hardware.Robots  # noqa: B018
