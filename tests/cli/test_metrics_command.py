"""`rlinf metrics`: a running job's metrics, read over HTTP as Prometheus does."""

import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress

import pytest

from rlinf.cli.metrics import _server
from rlinf.scheduler import Channel
from rlinf.scheduler.errors import ClusterError
from rlinf.testing import LocalRuntime

DEADLINE_S = 60.0
COMMAND = [sys.executable, "-c", "from rlinf.cli.main import main; main()", "metrics"]


@contextmanager
def serving(*arguments):
    """The command, and where it serves."""
    command = [*COMMAND, "--job", str(os.getpid()), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def read(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=DEADLINE_S) as answer:
        return answer.read().decode()


def test_they_are_served_on_this_machine_until_the_job_ends():
    with LocalRuntime() as runtime:
        Channel.create("trajectories").put("one")
        with serving() as (process, url):
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", url), process.stderr.read()
            assert 'rlinf_channel_items{channel="trajectories"} 1.0' in read(url)
            with pytest.raises(urllib.error.HTTPError, match="404"):
                read(url.removesuffix("/metrics"))
            runtime.close()
            assert process.wait(DEADLINE_S) == 0


def has_version_6():
    with socket.socket(socket.AF_INET6) as tried, suppress(OSError):
        tried.bind(("::1", 0))
        return True
    return False


@pytest.mark.skipif(not has_version_6(), reason="this machine has no addresses of version 6")
def test_they_are_served_at_addresses_of_version_6():
    with _server("::1", 0, lambda *_: []) as server:
        assert server.socket.getsockname()[:2] == ("::1", server.server_port)


def test_an_address_that_is_none_is_told():
    with pytest.raises(ClusterError, match=r"cannot listen on 192\.0\.2\.1, port 0: \w+"):
        _server("192.0.2.1", 0, lambda *_: [])


def test_with_a_token_only_who_shows_it_reads_them(tmp_path):
    file = tmp_path / "token"
    file.write_text("open sesame\n")
    with LocalRuntime(), serving("--token-file", str(file)) as (process, url):
        assert url.startswith("http"), process.stderr.read()
        assert "rlinf_rank_up" in read(url, Authorization="Bearer open sesame")
        for headers in ({}, {"Authorization": "Bearer open"}):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                read(url, **headers)


def test_other_machines_need_a_token():
    with LocalRuntime():
        command = [*COMMAND, "--job", str(os.getpid()), "--host", "0.0.0.0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 2
    assert "--token-file" in done.stderr
