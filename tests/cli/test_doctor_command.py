"""`rlinf doctor`: what it shows, and how it exits."""

import json

import pytest
from typer.testing import CliRunner

from fake_gcs import as_ray, listening
from rlinf_scheduler.cli.main import app
from rlinf_scheduler.doctor import examination, links
from rlinf_scheduler.doctor.facts import ClusterFacts, NodeFacts, Software
from rlinf_scheduler.errors import ClusterError


def shown(monkeypatch, facts, *options):
    monkeypatch.setattr(examination, "examine", lambda *_: facts)
    return CliRunner().invoke(app, ["doctor", *options])


def node(rank, **changes):
    sound = {"ip": f"10.0.0.{rank}", "hostname": f"h{rank}", "node_rank": str(rank), "node_id": str(rank)}
    return NodeFacts(
        **(sound | {"own_addresses": ("10.0.0.9",), "versions": Software("3.11.7", "2.60", "0.1")} | changes)
    )


def test_without_a_fault_it_exits_with_zero(monkeypatch):
    from rlinf_scheduler.doctor import checks

    monkeypatch.setattr(checks, "find_faults", lambda facts: [])
    done = shown(monkeypatch, ClusterFacts((node(0), node(1)), address="10.0.0.1:6379"))
    assert done.exit_code == 0
    assert "looked at the Ray at 10.0.0.1:6379" in done.output
    assert "0 faults, 0 notes" in done.output


def test_where_no_cluster_is_found_it_says_where_it_looked_and_how_others_are_reached(monkeypatch):
    done = shown(monkeypatch, ClusterFacts((node(0),)))
    looked = next(line for line in done.output.splitlines() if line.startswith("looked at"))
    assert looked.startswith("looked at this machine alone: RAY_ADDRESS names no cluster")
    assert "simulates" in looked
    assert "`--address HOST:PORT` says where one is" in looked


def test_a_fault_is_told_with_node_and_remedy_and_makes_it_exit_with_one(monkeypatch):
    done = shown(monkeypatch, ClusterFacts((node(0), node(1, node_rank="0")), address="10.0.0.1:6379"))
    assert done.exit_code == 1
    assert (
        "FAULT ranks: node 0 (10.0.0.1, h1): it has rank 0, and so has node 0 (10.0.0.0, h0)" in done.output
    )
    assert "rlinf node start ... --rank N" in done.output


def test_facts_and_findings_are_data_too(monkeypatch):
    done = shown(monkeypatch, ClusterFacts((node(0), node(1, node_rank="x"))), "--json")
    assert done.exit_code == 1
    data = json.loads(done.stdout)
    ranks = [finding for finding in data["findings"] if finding["check"] == "ranks"]
    assert [(finding["is_fault"], finding["node"]) for finding in ranks] == [(True, "node (10.0.0.1, h1)")]
    assert data["facts"]["nodes"][0]["versions"]["ray"] == "2.60"


def test_a_cluster_that_refuses_is_a_fault_and_not_a_crash(tmp_path, monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with listening(as_ray("another")) as (host, port):
        done = CliRunner().invoke(app, ["doctor", "--address", f"{host}:{port}", "--timeout-s", "60"])
    assert done.exit_code == 1
    assert "asks for a token (mode 'token')" in done.output


def test_a_cluster_that_cannot_be_joined_is_not_said_to_ask_nobody_for_a_token(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))  # a token in the home is told of
    monkeypatch.setattr(examination.ray, "is_initialized", lambda: False)

    def refuse(*_):
        raise ClusterError("the Ray at h:1 refuses the token")

    monkeypatch.setattr(examination, "find_address", refuse)
    done = CliRunner().invoke(app, ["doctor", "--address", "h:1"])
    assert done.exit_code == 1
    assert "this machine alone: no cluster could be joined" in done.output
    assert "FAULT joining: this machine: the Ray at h:1 refuses the token" in done.output
    assert "authentication" not in done.output
    assert "asks nobody for a token" not in done.output


def test_nodes_that_are_missing_are_told_in_a_line_with_how_they_join(monkeypatch):
    few = "2 nodes were asked for and 1 is there after 30 s:\n  10.0.0.0 (h0)\n  10.0.0.1 (h1)"
    facts = ClusterFacts((node(0),), joining_error=few, address="10.0.0.0:6379")
    done = shown(monkeypatch, facts)
    assert done.exit_code == 1
    assert "1 is there after 30 s: 10.0.0.0 (h0); 10.0.0.1 (h1)\n" in done.output
    assert "run `rlinf node start --address 10.0.0.0:6379 --rank 1`" in done.output
    assert "on the missing machines" in done.output


@pytest.mark.ray
def test_every_node_of_a_cluster_is_looked_at_and_reaches_the_others(ray_cluster):
    done = CliRunner().invoke(app, ["doctor", "--json"])
    data = json.loads(done.stdout)
    nodes = data["facts"]["nodes"]
    assert sorted(node["node_rank"] for node in nodes) == ["0", "1"]
    assert [node["accelerators"]["num_counted"] for node in nodes] == [4, 4]
    assert {node["versions"]["ray"] for node in nodes} == {__import__("ray").__version__}
    reaches = data["facts"]["reaches"]
    assert {reach["error"] for reach in reaches} == {""}
    assert {reach["service"] for reach in reaches} > {"processes", "Ray's node manager"}
    assert data["facts"]["links"] == []  # nodes of one machine have none between them
    assert not [
        finding for finding in data["findings"] if finding["check"] in ("joining", "ranks", "ports", "clocks")
    ]


@pytest.mark.ray
def test_nodes_of_different_machines_measure_the_way_between_them(ray_cluster, monkeypatch):
    found = examination.wait_for_nodes

    def at_addresses_of_their_own(*limits):
        records = enumerate(found(*limits), start=1)
        return [{**record, "NodeManagerAddress": f"127.0.0.{number}"} for number, record in records]

    monkeypatch.setattr(examination, "wait_for_nodes", at_addresses_of_their_own)
    # How fast each direction is depends on how busy this machine is.
    monkeypatch.setattr(links, "SLOW_TIMES", 1000.0)
    data = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    (link,) = data["facts"]["links"]
    assert {link["source"], link["target"]} == {node["node_id"] for node in data["facts"]["nodes"]}
    assert link["error"] == ""
    assert link["speed"]["sent_bytes_per_s"] > 0
    assert not [finding for finding in data["findings"] if finding["check"] in ("joining", "links")]


class Missing:
    """Of a module that is there where the driver runs, and on no node."""

    def __init__(self, node_id, ip, ports):
        """Never runs."""

    def look(self, is_head, resources):
        """Neither."""


@pytest.mark.system
@pytest.mark.ray
def test_a_node_on_which_nothing_of_ours_starts_is_told_with_the_reason(ray_cluster, monkeypatch):
    found = examination.wait_for_nodes

    def few_soon(num_nodes, timeout_s):
        return found(num_nodes, timeout_s if num_nodes is None else 2.0)

    monkeypatch.setattr(
        examination, "wait_for_nodes", few_soon
    )  # a process starts in a second, or in a minute
    monkeypatch.setattr(examination, "Examiner", Missing)
    done = CliRunner().invoke(app, ["doctor", "--num-nodes", "3", "--timeout-s", "200", "--json"])
    assert done.exit_code == 1
    few, *silent = (finding["problem"] for finding in json.loads(done.stdout)["findings"])
    assert "3 nodes were asked for and 2 are there" in few
    assert len(silent) == 2
    for problem in silent:
        assert "ModuleNotFoundError: No module named 'test_doctor_command'" in problem
