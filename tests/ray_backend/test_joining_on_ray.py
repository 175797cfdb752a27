"""Rays that somebody else started, with a token and without, joined by programs that have one and that have none."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from programs import run_program
from rlinf_scheduler.errors import ClusterTimeout
from rlinf_scheduler.proc import (
    held,
    living,
    marked,
    send,
    wait_for_ends,
    with_descendants,
)
from rlinf_scheduler.ray_backend import raylets

MARK = "OF_THE_TEST_OF_JOINING"
PROGRAM = """
import os, sys, time
from rlinf.scheduler import Cluster
from rlinf_scheduler.errors import ClusterError
begun = time.monotonic()
try:
    with Cluster(address=sys.argv[1], start_timeout_s=100) as cluster:
        print("joined", cluster.num_nodes)
    print("mode afterwards", os.environ.get("RAY_AUTH_MODE"))
except ClusterError as error:
    print(time.monotonic() - begun < 50, error)
"""


def _free_port():
    """The first of two ports at which nobody listens: Ray does on all addresses, whatever it is told."""
    for port in range(6721 + 2 * (os.getpid() % 1500), 10_000, 2):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for each in (port, port + 1):
                stack.enter_context(socket.socket()).bind(("", each))
            return port
    raise AssertionError("no two ports are free")


# Each process of tests has ports of its own.
_PORT = _free_port()
WITH_TOKEN, WITHOUT = f"127.0.0.21:{_PORT}", f"127.0.0.22:{_PORT + 1}"


def own_environment(home, **settings):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "RLINF_"))}
    return {**kept, "HOME": str(home), **settings}


@pytest.fixture(scope="module")
def foreign_rays():
    """Two heads, as `ray start` starts them; gives the home folder in which the token of the first lies."""
    with tempfile.TemporaryDirectory(prefix="rl", dir="/tmp") as folder:
        home = Path(folder, "home")
        token = home / ".ray" / "auth_token"
        token.parent.mkdir(parents=True)
        token.write_text("0123456789abcdef" * 4)  # which Ray finds, and asks for from now on
        mark = str(os.getpid())
        heads = []
        for address, mode in ((WITH_TOKEN, {}), (WITHOUT, {"RAY_AUTH_MODE": "disabled"})):
            host, _, port = address.partition(":")
            command = [
                sys.executable,
                "-m",
                "ray.scripts.scripts",
                "start",
                "--head",
                f"--node-ip-address={host}",
            ]
            options = [f"--port={port}", "--num-cpus=1", "--include-dashboard=false", "--no-monitor"]
            options.append("--include-log-monitor=false")
            settings = {"RAY_TMPDIR": f"{folder}/{port}", "RAY_USAGE_STATS_ENABLED": "0", MARK: mark, **mode}
            Path(folder, port).mkdir()
            with Path(folder, f"{port}.log").open("w") as output:
                heads.append(
                    subprocess.Popen(
                        [*command, *options],
                        env=own_environment(home, **settings),
                        stdout=output,
                        stderr=output,
                    )
                )
        try:
            statuses = [head.wait(200) for head in heads]
            said = [log.read_text(errors="replace")[-2000:] for log in Path(folder).glob("*.log")]
            assert statuses == [0, 0], said
            yield home
        finally:
            with held(with_descendants(marked(MARK, mark), living())) as descriptors:
                send(descriptors.values(), signal.SIGKILL)
                wait_for_ends(descriptors.values(), 60)


@contextlib.contextmanager
def a_file_with(text):
    with tempfile.NamedTemporaryFile("w", suffix=".token") as file:
        file.write(text)
        file.flush()
        yield file.name


def told(address, environment):
    done = run_program("-c", PROGRAM, address, with_ray=True, env=environment, timeout=150)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.ray(own=True)
def test_a_program_joins_with_the_token_of_its_home_and_the_mode_is_as_before(foreign_rays):
    assert told(WITH_TOKEN, own_environment(foreign_rays)) == "joined 1\nmode afterwards None\n"


@pytest.mark.ray(own=True)
def test_a_program_joins_with_a_token_in_a_file_that_a_variable_names(foreign_rays, tmp_path):
    with a_file_with("0123456789abcdef" * 4) as path:
        environment = own_environment(tmp_path, RAY_AUTH_TOKEN_PATH=path)
        assert told(WITH_TOKEN, environment).startswith("joined 1")


@pytest.mark.ray(own=True)
def test_a_ray_without_a_token_is_joined_whatever_lies_in_the_home_folder(foreign_rays):
    assert told(WITHOUT, own_environment(foreign_rays)).startswith("joined 1")


@pytest.mark.ray(own=True)
def test_a_refusal_is_quick_and_names_mode_and_token(foreign_rays, tmp_path):
    assert told(WITH_TOKEN, own_environment(tmp_path)).startswith(
        f"True the Ray at {WITH_TOKEN} asks for a token (mode 'token'), and there is none here"
    )
    wrong = own_environment(foreign_rays, RAY_AUTH_TOKEN="of-another-ray")
    assert "(mode 'token') refuses the token of the variable RAY_AUTH_TOKEN" in told(WITH_TOKEN, wrong)


@pytest.mark.ray(own=True)
def test_a_machine_that_is_no_node_is_told_so_at_the_deadline(foreign_rays):
    raylets.wait_for_raylet(WITHOUT, 60)
    begun = time.monotonic()
    with pytest.raises(ClusterTimeout, match=r"this machine is no node of the Ray at 127\.0\.0\.23:6723"):
        raylets.wait_for_raylet("127.0.0.23:6723", 0.3)
    assert time.monotonic() - begun < 30
