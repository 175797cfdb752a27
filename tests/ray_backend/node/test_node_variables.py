"""The variables that a node of ours begins with."""

from rlinf_scheduler.ray_backend.node import copying, variables

KEPT_READY = "RAY_prestart_worker_first_driver"


def test_no_workers_are_kept_ready_unless_the_user_says_so():
    assert variables.of_a_node({})[KEPT_READY] == "0"
    assert variables.of_a_node({KEPT_READY: "1"})[KEPT_READY] == "1"


def test_its_processes_copy_large_memory_around_the_cache():
    tuned = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}
    assert copying.of_a_node(tuned).items() <= variables.of_a_node(tuned).items()
