"""`rlinf node`: what is asked, what is told, and how it exits. Ray itself is a small program here."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlinf_scheduler.cli import node as node_command
from rlinf_scheduler.cli.main import app
from rlinf_scheduler.proc import held, living, send, wait_for_ends
from rlinf_scheduler.ray_backend import folders, this_node

FAKE_RAY = Path(__file__).parents[1] / "ray_backend" / "fake_ray.py"
HEAD = ("start", "--head", "--interface", "127.0.0.8", "--port", "6557")


@pytest.fixture
def rlinf_node(tmp_path, monkeypatch):
    """Runs `rlinf node` on a machine of its own; what was started ends with the test."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    monkeypatch.setattr(folders, "private_directory", lambda longest=None: private)
    monkeypatch.setattr(this_node, "_RAY", (sys.executable, str(FAKE_RAY)))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FAKE_RAY_SAYS", str(tmp_path / "said"))
    monkeypatch.setenv("FAKE_RAY_STARTS", "ends")
    monkeypatch.setenv("FAKE_RAY_ENDS", "0")

    def run(*arguments, **options):
        return CliRunner().invoke(app, ["node", *arguments], **options)

    yield run
    run("stop", "--all")


def alive(pids):
    return {process.pid for process in living()} & set(pids)


def said(tmp_path):
    return json.loads((tmp_path / "said").read_text())


def test_a_head_says_how_the_others_join_and_never_the_token(rlinf_node, tmp_path):
    done = rlinf_node(*HEAD, "--rank", "0", "--", "--num-gpus", "4")
    assert done.exit_code == 0, done.output
    assert "started node 0 (127.0.0.8) of the Ray at 127.0.0.8:6557" in done.output
    assert "rlinf node start --address 127.0.0.8:6557 --rank 1" in done.output
    assert (tmp_path / ".rlinf" / "ray_token").read_text() not in done.output
    assert not (tmp_path / ".ray").exists()
    assert said(tmp_path)["arguments"][-2:] == ["--num-gpus", "4"]


def test_a_token_from_the_standard_input_is_kept_for_this_user_alone(rlinf_node, tmp_path):
    done = rlinf_node(*HEAD, "--token-file", "-", input="given-by-ssh\n")
    assert done.exit_code == 0, done.output
    path = tmp_path / ".rlinf" / "ray_token"
    assert path.read_text() == "given-by-ssh"
    assert path.stat().st_mode & 0o777 == 0o600
    rlinf_node("stop")
    other = rlinf_node(*HEAD, "--token-file", "-", input="another")
    assert other.exit_code == 2
    assert f"another token lies in {path}" in other.output
    assert rlinf_node(*HEAD, "--token-file", "-", input="").exit_code == 2


def test_a_token_in_a_file_is_told_to_ray_by_its_path(rlinf_node, tmp_path):
    (tmp_path / "mine").write_text("of-a-file")
    rlinf_node(*HEAD, "--token-file", str(tmp_path / "mine"))
    assert said(tmp_path)["environment"]["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "mine")
    assert not (tmp_path / ".ray").exists()


def test_a_cluster_that_anybody_may_join_says_so(rlinf_node):
    assert "anybody who reaches it can run programs on it" in rlinf_node(*HEAD, "--auth", "off").output


def test_what_was_started_is_stopped_and_the_second_time_there_is_nothing(rlinf_node):
    started = json.loads(rlinf_node(*HEAD, "--json").stdout)
    assert started["token_fingerprint"]
    elsewhere = rlinf_node("stop", "--address", "10.0.0.1:6379")
    assert elsewhere.exit_code == 1
    assert (
        "no node of the cluster at 10.0.0.1:6379 that `rlinf node start` started runs here"
        in elsewhere.output
    )
    assert "this one does: node (127.0.0.8) of the Ray at 127.0.0.8:6557" in elsewhere.output
    done = rlinf_node("stop")
    assert done.exit_code == 0
    assert "stopped node (127.0.0.8) of the Ray at 127.0.0.8:6557: 1 process" in done.output
    assert not alive(process["pid"] for process in started["processes"])
    done = rlinf_node("stop")
    assert done.exit_code == 1
    assert "no node that `rlinf node start` started runs here" in done.output


@pytest.fixture
def two_nodes(rlinf_node):
    """Nodes of two clusters, which run."""
    return [
        json.loads(rlinf_node("start", "--head", "--interface", "127.0.0.8", "--port", port, "--json").stdout)
        for port in ("6557", "6558")
    ]


def pids_of(nodes):
    return [process["pid"] for node in nodes for process in node["processes"]]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_of_several_nodes_none_is_stopped_before_it_was_said_which(rlinf_node, two_nodes, options):
    done = rlinf_node("stop", *options)
    assert done.exit_code == 2
    assert "2 nodes run here; say which to stop (--address), or that all are meant (--all):" in done.output
    assert "node (127.0.0.8) of the Ray at 127.0.0.8:6557" in done.output
    assert "node (127.0.0.8) of the Ray at 127.0.0.8:6558" in done.output
    assert alive(pids_of(two_nodes)) == set(pids_of(two_nodes))
    assert rlinf_node("stop", "--address", "127.0.0.8:6557").exit_code == 0
    assert alive(pids_of(two_nodes)) == set(pids_of(two_nodes[1:]))
    assert rlinf_node("stop", *options).exit_code == 0  # the one that is left
    assert alive(pids_of(two_nodes)) == set()


def test_all_nodes_are_stopped_where_all_are_meant(rlinf_node, two_nodes):
    assert rlinf_node("stop", "--all", "--address", "127.0.0.8:6557").exit_code == 2
    assert rlinf_node("stop", "--all").output.count("stopped node (127.0.0.8)") == 2
    assert alive(pids_of(two_nodes)) == set()


@pytest.mark.parametrize(("answer", "status"), [("n", 1), ("", 1), ("y", 0)])
def test_at_a_terminal_the_nodes_are_listed_and_it_is_asked(
    rlinf_node, two_nodes, monkeypatch, answer, status
):
    monkeypatch.setattr(node_command, "_at_a_terminal", lambda: True)
    done = rlinf_node("stop", input=f"{answer}\n")
    assert done.exit_code == status
    assert done.output.index("of the Ray at 127.0.0.8:6558") < done.output.index("stop all of them? [y/N]")
    assert alive(pids_of(two_nodes)) == (set(pids_of(two_nodes)) if status else set())


def test_a_node_that_has_ended_by_itself_is_none_to_ask_about(rlinf_node, two_nodes):
    ended = pids_of(two_nodes[:1])
    with held(process for process in living() if process.pid in ended) as descriptors:
        send(descriptors.values(), signal.SIGKILL)
        assert not wait_for_ends(descriptors.values(), 60)
    assert rlinf_node("stop").exit_code == 0
    assert alive(pids_of(two_nodes)) == set()


def test_a_node_that_was_started_with_another_temporary_folder_is_told_of(rlinf_node, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "of the start"))
    assert rlinf_node(*HEAD).exit_code == 0
    there, elsewhere = folders.private_directory(), tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    monkeypatch.setattr(folders, "private_directory", lambda longest=None: elsewhere)
    done = rlinf_node("stop")
    assert done.exit_code == 1
    assert f"`TMPDIR={tmp_path}/of the start rlinf node stop` stops it" in done.output
    monkeypatch.setattr(folders, "private_directory", lambda longest=None: there)
    assert rlinf_node("stop").exit_code == 0
    assert str(tmp_path) not in rlinf_node("stop").output


@pytest.mark.parametrize("address", ["auto", "local"])
def test_a_head_is_named_by_its_address(rlinf_node, address):
    done = rlinf_node("start", "--address", address)
    assert done.exit_code == 2
    assert f"'{address}' names no head" in done.output


@pytest.mark.parametrize("options", [(), ("--head", "--address", "10.0.0.1:6379")])
def test_it_is_either_a_head_or_one_that_joins(rlinf_node, options):
    done = rlinf_node("start", *options)
    assert done.exit_code == 2
    assert "either --head, for a new cluster, or --address HOST:PORT" in done.output


def test_a_start_that_fails_shows_rays_last_words(rlinf_node, monkeypatch):
    monkeypatch.setenv("FAKE_RAY_ENDS", "1")
    done = rlinf_node(*HEAD)
    assert done.exit_code == 2
    assert "the last words of ray start" in done.output


BLOCKING = """
import sys
from pathlib import Path
from rlinf_scheduler.cli.main import main
from rlinf_scheduler.ray_backend import folders, this_node
private, fake_ray = Path(sys.argv.pop(1)), sys.argv.pop(1)
folders.private_directory = lambda longest=None: private
this_node._RAY = (sys.executable, fake_ray)
main()
"""


@pytest.fixture
def in_the_foreground(rlinf_node, tmp_path):
    """A node whose command stays: the command, and the node's processes."""
    command = [sys.executable, "-c", BLOCKING, str(tmp_path / "private"), str(FAKE_RAY), "node", *HEAD]
    with subprocess.Popen(
        [*command, "--block", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        lines = iter(started.stdout.readline, "}\n")
        pids = [int(line.split(":")[1].strip(" ,\n")) for line in lines if '"pid"' in line]
        assert len(pids) == 1
        yield started, pids
        started.kill()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_node_in_the_foreground_ends_with_its_command(in_the_foreground, number, status):
    started, pids = in_the_foreground
    assert alive(pids)
    started.send_signal(number)
    assert started.wait(60) == status
    assert not alive(pids)
    assert this_node.read_records() == []


def test_a_node_in_the_foreground_that_ends_by_itself_is_told(in_the_foreground):
    started, pids = in_the_foreground
    os.kill(pids[0], signal.SIGKILL)
    assert started.wait(60) == 1
    assert "has ended by itself; its log: " in started.stderr.read()
