"""The processes of the tests' Ray are seen to end."""

import os
import select
import shutil
import subprocess

from ray_witness import RayWitness


def test_what_the_processes_of_a_ray_die_of_is_told_with_what_fails(tmp_path):
    programs = [shutil.copy("/bin/sleep", tmp_path / name) for name in ("gcs_server", "raylet", "agent")]
    children = [subprocess.Popen([program, "600"]) for program in programs]
    try:
        witness = RayWitness()
        assert witness.told() == ""
        for child in children[1:]:
            child.kill()
            descriptor = os.pidfd_open(child.pid)
            assert select.select([descriptor], [], [], 60)[0]
            os.close(descriptor)
        told = f"raylet, process {children[1].pid}, has ended: killed by SIGKILL"
        assert (witness.told(), witness.told()) == (told, told)
        witness.close()
    finally:
        for child in children:
            child.kill()
            child.wait()
