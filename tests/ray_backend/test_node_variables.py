"""The variables that a node of ours begins with."""

from rlinf_scheduler.ray_backend import variables

COPYING = "GLIBC_TUNABLES"
KEPT_READY = "RAY_prestart_worker_first_driver"


def test_no_workers_are_kept_ready_unless_the_user_says_so():
    assert variables.of_a_node({})[KEPT_READY] == "0"
    assert variables.of_a_node({KEPT_READY: "1"})[KEPT_READY] == "1"


def test_its_processes_copy_large_memory_around_the_cache_where_the_user_has_not_set_another():
    alone = variables.of_a_node({})[COPYING]
    behind = variables.of_a_node({COPYING: "glibc.malloc.arena_max=2"})[COPYING]
    assert alone == "glibc.cpu.x86_non_temporal_threshold=4194304"
    assert behind == f"{alone}:glibc.malloc.arena_max=2"
