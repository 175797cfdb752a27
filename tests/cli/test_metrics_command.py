"""`rlinf metrics`: a running job's metrics, read over HTTP as Prometheus does."""

import os
import re
import socket
import tempfile
import urllib.error
import urllib.request
from contextlib import suppress

import pytest
from typer.testing import CliRunner

from programs import RLINF, Program
from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime
from rlinf_scheduler.cli.main import app
from rlinf_scheduler.cli.serve import _server, _token, _token_file
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.metrics.prometheus import metrics_app, own_token_file

DEADLINE_S = 60.0


@pytest.fixture
def token_file(tmp_path):
    file = tmp_path / "token"
    file.write_text("open sesame\n")
    return file


def read(url, token):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return answer.read().decode()


def test_they_are_served_to_who_has_the_token_until_the_job_ends(token_file):
    arguments = ["--job", os.getpid(), "--token-file", token_file]
    with LocalRuntime() as runtime, Program("-c", RLINF, "metrics", *arguments) as process:
        Channel.create("trajectories").put("one")
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", url), process.stderr.read()
        assert 'rlinf_channel_items{channel="trajectories"} 1.0' in read(url, "open sesame")
        for asked, token, status in ((url, "open", 401), (url.removesuffix("/metrics"), "open sesame", 404)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                read(asked, token)
            assert refused.value.status == status
            refused.value.close()
        runtime.close()
        assert process.wait(DEADLINE_S) == 0


def test_without_a_file_the_token_is_this_users_own_and_the_same_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first = own_token_file()
    token = first.read_text().strip()
    assert own_token_file().read_text().strip() == token
    assert len(token) >= 32
    assert first.stat().st_mode & 0o777 == 0o600
    assert first.parent.stat().st_mode & 0o777 == 0o700
    assert list(first.parent.iterdir()) == [first]
    first.chmod(0o644)
    with pytest.raises(ClusterError, match="is not this user's alone: remove it"):
        own_token_file()


@pytest.mark.parametrize("no_token", [False, True])
def test_readers_show_a_token_unless_it_is_said_that_they_need_not(no_token, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    file = _token_file(None, "127.0.0.1", no_token=no_token)
    assert (file is None) == no_token
    app = metrics_app(lambda: 1 / 0, token="" if file is None else _token(file))
    told = []
    asked = {"PATH_INFO": "/metrics", "REQUEST_METHOD": "GET", "QUERY_STRING": ""}
    with suppress(ZeroDivisionError):
        app(asked, lambda status, _headers: told.append(status))
    assert told == ([] if no_token else ["401 Unauthorized"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--no-token", "--host", "0.0.0.0"], "--token-file"),
        (["--no-token", "--token-file", "any"], "say one of them"),
        (["--host", "0.0.0.0"], "--token-file"),
        (["--token-file", "nowhere"], "the token cannot be read"),
        (["--token-file", os.devnull], "there is no token in /dev/null"),
        (["--host", "192.0.2.1", "--token-file", __file__], "cannot listen on 192.0.2.1"),
    ],
)
def test_what_cannot_be_served_is_refused_and_why(arguments, told):
    with LocalRuntime():
        done = CliRunner().invoke(app, ["metrics", "--job", str(os.getpid()), *arguments])
    assert done.exit_code == 2
    assert told in done.stderr


def has_version_6():
    with socket.socket(socket.AF_INET6) as tried, suppress(OSError):
        tried.bind(("::1", 0))
        return True
    return False


@pytest.mark.skipif(not has_version_6(), reason="this machine has no addresses of version 6")
def test_they_are_served_at_addresses_of_version_6():
    with _server("::1", 0, lambda *_: []) as server:
        assert server.socket.getsockname()[:2] == ("::1", server.server_port)
