"""What stands in for Ray's agents: it listens where they would, turns into one at the first question, and ends."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import ray
from ray._private import ray_constants, services

from rlinf_scheduler.ray_backend import fewest_processes, idle_agent
from waits import wait_until

# Listens as Ray's does; says who it is, to whoever asks.
AGENT = """
import json, os, socket, sys
port = int([each for each in sys.argv if each.startswith("--runtime-env-agent-port=")][-1].partition("=")[2])
other = socket.socket()
other.bind(("127.0.0.1", 0))
listening = socket.socket()
listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listening.bind(("127.0.0.1", port))
listening.listen()
for _ in range(2):
    asking, _ = listening.accept()
    asking.sendall(json.dumps([os.getpid(), sys.argv, __name__, other.getsockname()[1] != port]).encode())
    asking.close()
"""
DEADLINE_S = 60.0


def idle(*arguments):
    command = [sys.executable, "-I", "-S", idle_agent.__file__, *map(str, arguments)]
    environment = os.environ | {"RAY_RAYLET_PID": str(os.getpid())}
    return subprocess.Popen(command, env=environment)


def answer(connection):
    with connection:
        return json.loads(connection.makefile().read())


def test_the_first_that_asks_is_answered_by_the_agent_itself(tmp_path):
    program, told = tmp_path / "agent.py", tmp_path / "port of it"
    program.write_text(AGENT)
    own = ["--node-ip-address=127.0.0.1", "--runtime-env-agent-port=0", "--more=words of its own"]
    with idle(program, *own, f"--port-file={told}") as process:
        wait_until(told.exists)
        place = "127.0.0.1", int(told.read_text())
        port = f"--runtime-env-agent-port={place[1]}"
        both = [socket.create_connection(place, DEADLINE_S) for _ in range(2)]
        for connection in both:
            assert answer(connection) == [process.pid, [str(program), *own, port], "__main__", True]
        assert process.wait(DEADLINE_S) == 0


IDLE = f"import runpy; runpy.run_path({idle_agent.__file__!r}, run_name='__main__')"
REFUSED = f"""
import os
def refuse(pid): raise PermissionError
os.pidfd_open = refuse
{IDLE}"""


@pytest.mark.parametrize("arguments", [[], ["--node-ip-address=127.0.0.1", "--runtime-env-agent-port=0"]])
@pytest.mark.parametrize("code", [IDLE, REFUSED], ids=["that is watched", "that may not be watched"])
def test_it_ends_with_its_raylet(code, arguments):
    command = [sys.executable, "-I", "-S", "-c", code, "never read", *arguments]
    code = (
        "import os, subprocess; os.environ['RAY_RAYLET_PID'] = str(os.getpid()); "
        f"print(subprocess.Popen({command}).pid, flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", code], **pipes) as raylet:
        started = Path("/proc") / raylet.stdout.readline().strip()
        raylet.kill()
    wait_until(lambda: not started.exists())


def agents(*, minimal, how="python -u", monkeypatch):
    """The commands for both agents of a raylet that is started so."""
    given = []
    folder = Path(ray.__file__).parent
    command = [
        "raylet",
        "--session_dir=/nowhere",
        f"--dashboard_agent_command={how} {folder}/dashboard/agent.py --a=b{minimal}",
        f"--runtime_env_agent_command={how} {folder}/_private/runtime_env/agent/main.py --c=d",
    ]
    monkeypatch.setattr(services, "start_ray_process", lambda command, *_: given.append(command))
    monkeypatch.setattr(fewest_processes, "_raylet", None)  # an old one
    with fewest_processes.fewest_processes():
        services.start_ray_process(command, ray_constants.PROCESS_TYPE_RAYLET)
        services.start_ray_process(command, "other")
    (first, other) = given
    assert (first[:2], other) == (command[:2], command)
    return [idle_agent.__file__ in each for each in first[2:]]


def test_an_agent_of_a_dashboard_that_is_installed_stays_and_one_that_is_started_in_another_way(monkeypatch):
    assert agents(minimal=" --minimal", monkeypatch=monkeypatch) == [True, True]
    assert agents(minimal="", monkeypatch=monkeypatch) == [False, True]
    assert agents(minimal=" --minimal", how="profiler -u -x", monkeypatch=monkeypatch) == [False, False]


@pytest.mark.parametrize(("wanted", "stats", "started"), [(False, "0", 0), (False, "1", 1), (True, "0", 1)])
def test_a_server_is_started_for_a_dashboard_and_for_statistics_that_are_wanted(
    wanted, stats, started, monkeypatch
):
    given = []
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", stats)
    monkeypatch.setattr(services, "start_api_server", lambda *some, **_: given.append(some) or ("", None))
    with fewest_processes.fewest_processes():
        services.start_api_server(wanted, "more")
    assert given == [(wanted, "more")] * started
