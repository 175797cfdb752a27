"""What a node is started with, so that its processes copy large memory around the cache."""

from rlinf_scheduler.ray_backend.node import copying


def test_what_is_set_already_comes_last_and_wins():
    (alone,) = copying.of_a_node({}).values()
    (behind,) = copying.of_a_node({"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}).values()
    assert alone == "glibc.cpu.x86_non_temporal_threshold=4194304"
    assert behind == f"{alone}:glibc.malloc.arena_max=2"
