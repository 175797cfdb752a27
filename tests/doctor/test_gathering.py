"""Facts of this machine, as they are; and what they are where something is missing."""

import os
import resource
import stat

import pytest

from rlinf_scheduler.doctor import gathering
from rlinf_scheduler.doctor.checks import find_faults
from rlinf_scheduler.doctor.facts import ClusterFacts
from rlinf_scheduler.doctor.gathering import gather_facts, open_to_others


def test_this_machine_can_do_what_the_library_needs(monkeypatch):
    monkeypatch.setenv("RLINF_NODE_RANK", " 3 ")
    facts = gather_facts(ip="10.0.0.1", node_id="id", is_head=True, resources={"object_store_memory": 5.0})
    assert (facts.ip, facts.node_id, facts.is_head, facts.node_rank) == ("10.0.0.1", "id", True, "3")
    assert facts.versions.python == os.sys.version.split()[0]
    assert facts.versions.ray
    assert facts.versions.package
    assert facts.versions.libraries["msgspec"]
    assert facts.memory.ray_store_bytes == 5
    assert facts.memory.shm_bytes > 0
    limits = facts.limits
    assert (facts.memory.memfd_error, limits.pidfd_error, limits.peer_memory_error) == ("", "", "")
    assert limits.open_files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert not [f for f in find_faults(ClusterFacts((facts,))) if f.check in ("versions", "processes")]


def test_a_kernel_that_refuses_is_told_in_its_own_words(monkeypatch):
    def refuse(*_arguments, **_options):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(gathering.os, "pidfd_open", refuse)
    monkeypatch.setattr(gathering.kernel, "open_of", refuse)
    monkeypatch.setattr(gathering.kernel, "create", refuse)
    facts = gather_facts(ip="10.0.0.1")
    found = {finding.check for finding in find_faults(ClusterFacts((facts,)))}
    assert {"memory", "processes"} <= found
    assert "Operation not permitted" in facts.limits.pidfd_error
    assert "Operation not permitted" in facts.limits.peer_memory_error


def test_a_name_that_stands_for_nothing_is_a_fact(monkeypatch):
    monkeypatch.setattr(gathering.platform, "node", lambda: "no-such-host.invalid")
    assert gather_facts(ip="10.0.0.1").own_addresses == ()


def test_the_token_is_told_by_its_fingerprint_and_by_who_can_read_it(tmp_path, monkeypatch):
    path = tmp_path / "token"
    path.write_text("secret-of-mine")
    path.chmod(0o644)
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    facts = gather_facts(ip="10.0.0.1")
    assert facts.token.others_can_read
    assert (facts.token.mode, facts.token.source) == ("token", str(path))
    assert "secret-of-mine" not in repr(facts)
    path.unlink()
    assert "cannot be read" in gather_facts(ip="10.0.0.1").token.source


def test_a_token_with_which_ray_turns_authentication_on_is_told_beside_the_one_that_is_used(
    tmp_path, monkeypatch
):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder, name in ((".rlinf", "ray_token"), (".ray", "auth_token")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(name)
        told = gather_facts(ip="10.0.0.1").token
        assert told.source == str(tmp_path / ".rlinf" / "ray_token")
        assert told.turned_on_by == (str(tmp_path / ".ray" / "auth_token") if folder == ".ray" else "")


@pytest.mark.parametrize(
    ("modes", "is_open"), [((0o755, 0o777), True), ((0o700, 0o777), False), ((0o755, 0o755), False)]
)
def test_a_folder_is_open_where_others_can_come_to_it_and_write(modes, is_open, monkeypatch):
    inner = gathering.Path("/outer/inner")
    of = {inner: modes[1], inner.parent: modes[0], gathering.Path("/"): 0o755}
    monkeypatch.setattr(
        gathering.Path, "stat", lambda path: os.stat_result((stat.S_IFDIR | of[path], *[0] * 9)), raising=True
    )
    assert open_to_others(inner) is is_open


def test_devices_that_the_kernel_shows_and_nobody_counted_are_facts(monkeypatch):
    monkeypatch.delenv("RLINF_SIMULATED_ACCELERATORS", raising=False)
    monkeypatch.setattr(gathering, "_device_files", lambda name: 8 if name == "NVIDIA" else None)
    monkeypatch.setattr(gathering, "find_devices", lambda vendor: None)
    seen = gather_facts(ip="10.0.0.1", node_id="id", resources={}).accelerators
    assert (seen.vendor, seen.num_counted, seen.num_device_files, seen.uuids) == ("NVIDIA", 0, 8, None)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5\n", "550.54.15"),
        ("6.8.5\n", "6.8.5"),
    ],
)
def test_a_driver_is_told_by_its_version(tmp_path, monkeypatch, text, version):
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(gathering, "_DRIVERS", (tmp_path / "missing", tmp_path / "version"))
    assert gathering._driver() == version
