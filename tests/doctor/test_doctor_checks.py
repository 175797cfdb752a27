"""Each check finds the fault that is planted in the facts, names the node, and finds nothing where all is well."""

import msgspec
import pytest

from rlinf_scheduler.doctor.checks import CHECKS, find_faults
from rlinf_scheduler.doctor.facts import (
    AcceleratorFacts,
    ClusterFacts,
    HardwareFacts,
    LimitFacts,
    MemoryFacts,
    NodeFacts,
    Reach,
    Software,
    TokenFacts,
)

GIB = 1 << 30
VERSIONS = Software("3.11.7", "2.60.0", "0.1.0", {"numpy": "2.3.0"})
TOKEN = TokenFacts("token", "0a1b2c3d", "/home/me/.rlinf/ray_token")
MEMORY = MemoryFacts(64 * GIB, 64 * GIB, 8 * GIB, "", "/tmp/rlinf-1000/ray", 100 * GIB)
LIMITS = LimitFacts(1 << 20, None, "", "", 1)
GPUS = AcceleratorFacts("NVIDIA", 2, 2, None, ("GPU-a", "GPU-b"), (), "550.1")


def node(rank, **changes):
    """A node with which nothing is wrong, but for the changes."""
    own_gpus = msgspec.structs.replace(GPUS, uuids=(f"GPU-{rank}-a", f"GPU-{rank}-b"))
    sound = {
        "node_id": f"id-{rank}",
        "ip": f"10.0.0.{rank + 1}",
        "hostname": f"host-{rank}",
        "is_head": rank == 0,
        "node_rank": str(rank),
        "own_addresses": (f"10.0.0.{rank + 1}",),
        "versions": VERSIONS,
        "token": TOKEN,
        "memory": MEMORY,
        "limits": LIMITS,
        "accelerators": own_gpus,
    }
    return NodeFacts(**(sound | changes))


def reach(source, target, **changes):
    sound = Reach(f"id-{source}", f"id-{target}", f"10.0.0.{target + 1}", 7000, "processes", "", 0.001, 0.0)
    return msgspec.structs.replace(sound, **changes)


REACHES = tuple(reach(a, b) for a in range(3) for b in range(3) if a != b)


def cluster(**planted):
    """Three nodes; `planted` are the changes of the last one."""
    nodes = (node(0), node(1), node(2, **planted))
    return ClusterFacts(nodes, REACHES, {}, "", "10.0.0.1:6379")


def with_part(part, **changes):
    return {part[0]: msgspec.structs.replace(part[1], **changes)}


MEM, LIM, TOK, ACC = ("memory", MEMORY), ("limits", LIMITS), ("token", TOKEN), ("accelerators", GPUS)
VER = ("versions", VERSIONS)

# What is planted in the third node, which check finds it, whether programs fail of it, and words of what it says.
PLANTED = [
    (with_part(VER, python="3.12.1"), "versions", True, "it has Python 3.12.1, and the others have 3.11.7"),
    (with_part(VER, ray="2.55.0"), "versions", True, "it has Ray 2.55.0, and the others have 2.60.0"),
    (with_part(VER, package=""), "versions", True, "it has no rlinf-scheduler, and the others have 0.1.0"),
    (with_part(VER, libraries={"numpy": "1.26"}), "versions", False, "it has numpy 1.26"),
    (with_part(VER, libraries={}), "versions", False, "it has no numpy"),
    ({"node_rank": "second"}, "ranks", True, "RLINF_NODE_RANK='second' is not a number from 0"),
    ({"node_rank": "1"}, "ranks", True, "it has rank 1, and so has node 1 (10.0.0.2, host-1)"),
    ({"node_rank": "7"}, "ranks", True, "it has rank 7, and the cluster has 3 nodes"),
    (with_part(TOK, others_can_read=True), "token", False, "other users can read the token in /home/me/.rlinf"),
    (with_part(TOK, turned_on_by="~/.ray/auth_token"), "token", False, "turns token authentication on for every Ray"),
    (with_part(TOK, mode="disabled"), "token", True, "its authentication mode is 'disabled'"),
    ({"pull_error": "nixl is not installed"}, "pulling", False, "through sockets: nixl is not installed"),
    ({"own_addresses": ()}, "names", False, "its own name 'host-2' stands for no address there"),
    ({"own_addresses": ("127.0.1.1",)}, "names", False, "stands for 127.0.1.1 there: gloo would listen"),
    (with_part(MEM, memfd_error="denied"), "memory", True, "memfd_create: denied"),
    (with_part(MEM, shm_bytes=64 << 20), "memory", False, "/dev/shm holds 64 MiB, and 8.0 GiB are wanted"),
    (with_part(MEM, shm_bytes=None), "memory", True, "there is no /dev/shm"),
    (with_part(MEM, others_can_write=True), "temporary files", False, "can write into Ray's folder /tmp/rlinf-1000"),
    (with_part(MEM, temporary_free_bytes=1 << 20), "temporary files", False, "has 1 MiB left"),
    (with_part(LIM, open_files=1024), "limits", True, "a process may have 1024 files"),
    (with_part(LIM, open_files=20000), "limits", False, "a process may have 20000 files"),
    (with_part(LIM, processes=1000), "limits", True, "this user may have 1000 processes"),
    (with_part(LIM, pidfd_error="no such call"), "processes", True, "pidfd_open: no such call"),
    (
        with_part(LIM, peer_memory_error="denied", ptrace_scope=3),
        "processes",
        False,
        "/proc/PID/fd: denied, kernel.yama.ptrace_scope is 3",
    ),
    (with_part(ACC, uuids=None), "accelerators", True, "the vendor's tool does not list any"),
    (with_part(ACC, num_counted=0, uuids=("x", "y")), "accelerators", True, "and Ray counted none"),
    (with_part(ACC, num_counted=1, uuids=("x", "y")), "accelerators", False, "and Ray counted 1"),
    (with_part(ACC, driver="535.9", uuids=("x", "y")), "accelerators", False, "its driver is 535.9"),
    (
        with_part(ACC, mask=("GPU-z",), unmatched=("GPU-z",), uuids=("x", "y")),
        "accelerators",
        True,
        "its mask names GPU-z, and no device is called so",
    ),
    (with_part(ACC, uuids=("GPU-0-a", "x")), "accelerators", True, "1 device of it is also node 0 (10.0.0.1"),
]  # fmt: skip


def test_nothing_is_found_where_nothing_is_wrong():
    assert find_faults(cluster()) == []
    assert find_faults(ClusterFacts()) == []


@pytest.mark.parametrize(("planted", "check", "is_fault", "words"), PLANTED, ids=[p[3][:40] for p in PLANTED])
def test_what_is_planted_is_found_and_nothing_else(planted, check, is_fault, words):
    facts = cluster(**planted)
    (finding,) = find_faults(facts)
    assert (finding.check, finding.is_fault) == (check, is_fault)
    assert words in finding.problem
    assert finding.node == facts.nodes[2].name
    assert finding.remedy
    assert list(CHECKS[check](facts)) == [finding]


def test_every_check_has_its_planted_fault():
    known = {check for _, check, _, _ in PLANTED}
    assert known | {"joining", "clocks", "ports", "links", "hardware"} == set(CHECKS)


def test_a_ray_that_asks_nobody_is_told_once():
    open_token = TokenFacts("disabled")
    facts = ClusterFacts((node(0, token=open_token), node(1, token=open_token)), (), {}, "", "10.0.0.1:6379")
    (finding,) = find_faults(facts)
    assert (finding.check, finding.node, finding.is_fault) == ("token", "", False)
    assert "whoever reaches its ports can run programs" in finding.problem


def test_a_port_that_is_not_reached_is_told_from_where_and_where_to():
    facts = msgspec.structs.replace(cluster(), reaches=(*REACHES, reach(1, 2, error="no answer in 3 s")))
    (finding,) = find_faults(facts)
    assert finding.node == "node 1 (10.0.0.2, host-1)"
    assert "processes of node 2 (10.0.0.3, host-2) at 10.0.0.3:7000: no answer in 3 s" in finding.problem


@pytest.mark.parametrize(
    ("offset_s", "round_trip_s", "told"),
    [
        (90.0, 0.001, "its clock is 90.0 s ahead of the head's"),
        (-2.5, 0.001, "its clock is 2.5 s behind the head's"),
        (0.9, 0.001, None),
        (1.5, 2.0, None),  # the way there may be what took the time
    ],
)
def test_a_clock_is_wrong_by_more_than_the_way_there_explains(offset_s, round_trip_s, told):
    wrong = reach(0, 2, offset_s=offset_s, round_trip_s=round_trip_s)
    others = tuple(r for r in REACHES if (r.source, r.target) != ("id-0", "id-2"))
    found = find_faults(msgspec.structs.replace(cluster(), reaches=(*others, wrong)))
    assert [told in finding.problem for finding in found if finding.check == "clocks"] == (
        [True] if told else []
    )
    assert len(found) == (1 if told else 0)


def test_a_node_that_does_not_answer_and_a_cluster_that_cannot_be_joined_are_told_with_the_reason():
    (silent,) = find_faults(
        msgspec.structs.replace(cluster(), silent={"node (10.0.0.9, h)": "No module named 'rlinf'"})
    )
    assert (silent.node, silent.is_fault) == ("node (10.0.0.9, h)", True)
    assert "No module named 'rlinf'" in silent.problem
    (refused,) = find_faults(ClusterFacts(joining_error="the Ray at h:1 asks for a token (mode 'token')"))
    assert "asks for a token" in refused.problem


def test_two_containers_with_masks_of_their_own_share_nothing():
    uuids = ("GPU-a", "GPU-b")
    half = [msgspec.structs.replace(GPUS, uuids=uuids, num_counted=1, mask=(str(i),)) for i in (0, 1)]
    facts = ClusterFacts((node(0, accelerators=half[0]), node(1, accelerators=half[1])))
    assert find_faults(facts) == []
    by_name = msgspec.structs.replace(half[1], mask=("GPU-a",))
    facts = ClusterFacts((node(0, accelerators=half[0]), node(1, accelerators=by_name)))
    assert [finding.check for finding in find_faults(facts)] == ["accelerators"]


def test_the_usual_is_what_most_have_and_of_two_what_the_head_has():
    other = msgspec.structs.replace(VERSIONS, ray="2.55.0")
    (finding,) = find_faults(ClusterFacts((node(1, versions=other), node(0))))
    assert finding.node == "node 1 (10.0.0.2, host-1)"


def test_declared_hardware_that_is_not_there_is_told_with_its_node():
    arm = HardwareFacts("node 1", 2, ("no answer",), ("no camera",))
    facts = msgspec.structs.replace(cluster(), hardware=(arm,))
    assert [(each.check, each.node, each.problem, each.is_fault) for each in find_faults(facts)] == [
        ("hardware", "node 1", "no answer", True),
        ("hardware", "node 1", "no camera", False),
    ]


def test_hardware_that_cannot_be_looked_at_is_a_fault():
    (finding,) = find_faults(msgspec.structs.replace(cluster(), hardware_error="ROBOT_IP of node 0 is 'x'"))
    assert (finding.check, finding.is_fault) == ("hardware", True)


def test_faults_come_before_notes():
    found = find_faults(cluster(limits=msgspec.structs.replace(LIMITS, open_files=20000), node_rank="x"))
    assert [finding.is_fault for finding in found] == [True, False]


def test_a_simulated_node_is_not_asked_for_what_a_real_one_needs():
    facts = cluster(
        is_simulated=True,
        memory=MemoryFacts(GIB, GIB, 8 * GIB, others_can_write=True),
        limits=LimitFacts(20000),
        accelerators=AcceleratorFacts("simulated", 4),
    )
    assert find_faults(facts) == []
