"""`cluster.profiling:` and the sections beside it, read and checked."""

import pytest

from rlinf.scheduler import Cluster
from rlinf_scheduler.config import read_cluster_config
from rlinf_scheduler.errors import ConfigError


def profiling(**section):
    return read_cluster_config({"cluster": {"num_nodes": 1, "profiling": section}}).profiling


def mistake(**section):
    with pytest.raises(ConfigError) as caught:
        profiling(**section)
    return str(caught.value)


def test_none_is_profiled_where_nobody_says_it():
    assert read_cluster_config({"cluster": {"num_nodes": 1}}).profiling is None


def test_groups_are_named_in_capitals_or_not_and_ranks_in_ranges():
    config = profiling(backend="nsight", worker_groups=["ActorGroup"], ranks="0-1,5")
    assert [rank for rank in range(8) if config.profiles("actorgroup", rank)] == [0, 1, 5]
    assert config.profiles("ActorGroup")
    assert not config.profiles("RolloutGroup", 0)


def test_all_stands_for_every_group():
    assert profiling(backend="nsight", worker_groups="all").profiles("anything", 3)


def test_nothing_is_profiled_when_it_is_off_or_no_group_is_named():
    assert not profiling(backend="nsight", worker_groups="all", enabled=False).profiles("actor")
    assert not profiling(backend="nsight").profiles("actor")


def test_steps_have_nsight_wait_for_windows():
    config = profiling(backend="nsight", worker_groups="all", steps=[5, 10], options={"t": "cuda"})
    assert dict(config.options) == {
        "t": "cuda",
        "capture-range": "cudaProfilerApi",
        "capture-range-end": "stop",
    }
    assert [step for step in range(12) if config.captures(step)] == [5, 10]


def test_what_a_user_says_of_windows_stays():
    options = {"capture-range": "nvtx", "stop-on-range-end": True}
    config = profiling(backend="nsight", steps=[1], options=options)
    assert dict(config.options) == {"capture-range": "nvtx", "capture-range-end": "stop"}


def test_torchs_own_profiler_is_told_steps_and_what_to_record():
    config = profiling(backend="torch", worker_groups=["actor"], steps=[3], flags=["record_shapes"])
    assert (config.flags, config.captures(3), config.captures(4)) == (("record_shapes",), True, False)
    assert "the key 'steps' is missing" in mistake(backend="torch", worker_groups=["actor"])
    assert "did you mean 'with_stack'?" in mistake(backend="torch", steps=[1], flags=["with_stacks"])


def test_the_other_profiler_has_arguments_and_variables():
    config = profiling(backend="rocprof_sys", args={"F": True}, env={"ROCPROFSYS_USE_SAMPLING": 1})
    assert config.options == (("F", "true"),)
    assert config.env == (("ROCPROFSYS_USE_SAMPLING", "1"),)


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({}, "cluster.profiling.backend: the profiler is missing: it is nsight or rocprof_sys or torch"),
        ({"backend": "perf"}, "the profiler is 'perf': it is nsight or rocprof_sys or torch"),
        ({"backend": "nsight", "worker_group": "a"}, "did you mean 'worker_groups'?"),
        ({"backend": "nsight", "args": {"F": "1"}}, "unknown key 'args'"),
        ({"backend": "nsight", "steps": [-1]}, "cluster.profiling.steps[0]"),
        ({"backend": "nsight", "ranks": "x"}, "cluster.profiling.ranks"),
        ({"backend": "nsight", "options": {"o": "a", "output": "b"}}, "two names of one option"),
        ({"backend": "nsight", "options": {"stats": "true"}, "flags": ["stats"]}, "stats stands here"),
    ],
)
def test_mistakes_are_told_with_their_places(section, told):
    assert told in mistake(**section)


def test_a_section_that_is_no_mapping_is_a_mistake():
    for key in ("profiling", "tracer"):
        with pytest.raises(ConfigError, match=f"cluster.{key}: this must be a mapping"):
            read_cluster_config({"cluster": {"num_nodes": 1, key: [1]}})
    with pytest.raises(ConfigError, match=r"cluster.auto_scheduler: this must be true or false"):
        read_cluster_config({"cluster": {"num_nodes": 1, "auto_scheduler": "maybe"}})


def test_groups_that_would_change_their_size_are_refused_before_anything_starts():
    with pytest.raises(ConfigError, match=r"cluster.auto_scheduler: .*elastic"):
        Cluster({"cluster": {"num_nodes": 1, "auto_scheduler": True}})


def test_a_config_with_the_keys_of_growing_groups_is_read():
    keys = ("use_pre_process_policy", "use_wait_before_last_iter_policy", "recreate_nccl_groups")
    config = read_cluster_config({"cluster": {"num_nodes": 1, **dict.fromkeys(keys, False)}})
    assert not config.auto_scheduler
