"""What the processes of an engine leave, when the process that started them could not end them."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from rlinf_scheduler.engines.processes import EngineProcesses, _command
from waits import wait_until

STARTS_AN_ENGINE = """
import asyncio, multiprocessing, sys, time
from multiprocessing.shared_memory import SharedMemory
from rlinf_scheduler.engines.processes import EngineProcesses

def core(name):
    memory = SharedMemory(name)
    time.sleep(120)

async def main():
    processes = EngineProcesses("EngineCore")
    memory = SharedMemory(create=True, size=64)
    core_process = multiprocessing.get_context("fork").Process(target=core, args=(memory.name,), name="EngineCore")
    core_process.start()
    while memory.name not in open(f"/proc/{core_process.pid}/maps").read():
        time.sleep(0.01)
    processes.note()
    print(processes.folder, memory.name, core_process.pid, flush=True)
    time.sleep(120)

asyncio.run(main())
"""


def test_a_spawned_process_that_has_no_title_is_named_a_worker():
    code = "from multiprocessing.spawn import spawn_main; import time; print(1, flush=True); time.sleep(60)"
    command = [sys.executable, "-B", "-c", code, "--multiprocessing-fork"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            assert _command(process.pid) == "Worker"
        finally:
            process.kill()


def test_what_a_killed_process_has_left_is_removed_when_the_next_engine_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_AN_ENGINE], stdout=subprocess.PIPE, text=True, env=environment
    ) as owner:
        folder, memory, core = owner.stdout.readline().split()
        paths = [Path(folder), Path("/dev/shm") / memory]
        other = EngineProcesses("EngineCore")
        assert all(each.exists() for each in paths)  # what lives is not removed
        owner.kill()
    between = EngineProcesses("EngineCore")
    assert all(each.exists() for each in paths)  # nor what its processes still have
    os.kill(int(core), signal.SIGKILL)
    wait_until(lambda: not is_running(int(core)))
    last = EngineProcesses("EngineCore")
    assert not any(each.exists() for each in paths)
    for each in (other, between, last):
        assert Path(each.folder).exists()
        asyncio.run(each.end(0))
    assert list(tmp_path.iterdir()) == []


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
