"""RLinf's names of traces, emulated networks and groups that change, as its programs use them."""

import asyncio
import json
import pickle
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest
from omegaconf import OmegaConf

from rlinf.scheduler import Tracer, Worker, manager
from rlinf.scheduler.absent import RolloutScalingScheduler, SchedulerWorker
from rlinf.scheduler.dynamic_scheduler.utils import (
    get_scheduler_channel,
    get_scheduler_request_queue,
    get_scheduler_response_queue,
    get_valid_dp_sizes,
)
from rlinf.scheduler.manager import net_emulation
from rlinf.scheduler.manager.net_emulation import CrossDCPair, NetEmulationConfig, NetEmulationManager
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.observe.timekeeping import TIMES

SECTION = {
    "enabled": True,
    "crossdc_pairs": [{"src": ["Env:0-1"], "dst": "Actor:0", "delay_ms": 100}],
    "bandwidth_groups": [{"members": ["Env:0", "Env:1"], "bandwidth_mbps": 8}],
}


@pytest.fixture
def spans():
    """The spans of this process, traced."""
    found, before = [], TIMES.span_file
    TIMES.trace(found.append)
    yield found
    TIMES.trace(before)


def test_spans_of_a_traced_job_are_in_its_trace(spans):
    Tracer.trace_begin("step", cat="runner", args={"number": 3})
    with Tracer.trace_span("inner"):
        pass
    Tracer.trace_begin("other")
    Tracer.trace_end("step")
    Tracer.trace_end("other")
    Tracer.trace_end("never begun")
    assert [(each.name, each.subject) for each in spans] == [
        ("inner", "default"),
        ("step", "runner, number=3"),
        ("other", "default"),
    ]
    inner, step, _ = spans
    assert step.began <= inner.began <= inner.ended <= step.ended


def test_functions_are_traced_with_and_without_a_category(spans):
    @Tracer.trace_func
    def plain(value):
        return value

    @Tracer.trace_func("env")
    def named(value):
        return value

    @Tracer.trace_func(cat="actor")
    async def asynchronous(value):
        return value

    assert [plain(1), named(2), asyncio.run(asynchronous(3))] == [1, 2, 3]
    assert [(each.name, each.subject) for each in spans] == [
        ("plain", "default"),
        ("named", "env"),
        ("asynchronous", "actor"),
    ]


def test_a_class_whose_methods_are_decorated_can_be_sent_by_value():
    class Decorated(Worker):
        @Tracer.trace_func
        def traced(self): ...

        @Tracer.trace_func("env")
        async def traced_with_a_category(self): ...

        @Worker.timer
        def timed(self): ...

        @Worker.timer("step")
        async def timed_by_name(self): ...

        def locked(self):
            with self.device_lock, self.worker_timer():
                ...

    assert pickle.loads(cloudpickle.dumps(Decorated)).__name__ == "Decorated"


def test_what_is_begun_and_never_ended_does_not_grow_for_ever(spans):
    for _ in range(5000):
        Tracer.trace_begin("lost")
    for _ in range(5000):
        Tracer.trace_end("lost")
    assert 1000 <= len(spans) <= 1100


def test_without_a_trace_nothing_is_noted():
    with Tracer.trace_span("step"):
        assert Tracer._get() is None


def test_a_tracer_of_ones_own_writes_an_event_a_line(tmp_path):
    tracer = Tracer(tmp_path / "new" / "trace.jsonl")
    tracer.record({"name": "a", "ph": "B"})
    tracer.record({"name": "a", "ph": "E"})
    path = tracer.finalize()
    with open(path) as file:
        assert [json.loads(line)["ph"] for line in file] == ["B", "E"]


def test_the_section_is_records_with_every_rank_on_its_own():
    config = NetEmulationConfig.from_cfg(OmegaConf.create(SECTION))
    assert config.symmetric
    assert config.crossdc_pairs == (
        CrossDCPair("Env:0", "Actor:0", 100.0),
        CrossDCPair("Env:1", "Actor:0", 100.0),
    )
    assert [(each.members, each.bandwidth_mbps) for each in config.bandwidth_groups] == [
        (("Env:0", "Env:1"), 8.0)
    ]
    assert NetEmulationConfig.from_cfg({**SECTION, "enabled": False}) is None
    with pytest.raises(ConfigError, match=r"net_emulation\.crossdc_pairs\[0\]: the key 'dst' is missing"):
        NetEmulationConfig.from_cfg({"enabled": True, "crossdc_pairs": [{"src": "a:0", "delay_ms": 1}]})


def test_links_can_be_asked(monkeypatch):
    # Both are asked in one moment, however long this process is held up in between.
    monkeypatch.setattr(net_emulation, "time", SimpleNamespace(monotonic=lambda: 5.0))
    links = NetEmulationManager(SECTION)
    assert links.reserve("EnvGroup:0", "ActorGroup:0", 1_000_000) == pytest.approx(1.1)
    assert links.reserve("EnvGroup:1", "ActorGroup:0", 500_000) == pytest.approx(1.6)
    assert links.reserve_broadcast("Env:0", ["Env:1"], 1) == 0.0
    with pytest.raises(ConfigError, match="not enabled"):
        NetEmulationManager({"enabled": False})


def test_the_size_of_what_is_sent_is_that_of_its_bytes():
    size_of = NetEmulationManager.estimate_payload_size_bytes
    plain = {"task": "cube", "step": 7}
    assert size_of(None) == 0
    assert size_of(plain) == len(pickle.dumps(plain, protocol=pickle.HIGHEST_PROTOCOL))
    assert 80_000 <= size_of({"a": np.zeros(10_000), "b": 1}) < 81_000


def test_managers_are_where_rlinf_has_them():
    assert manager.Tracer is Tracer
    assert manager.NetEmulationManager is NetEmulationManager
    assert manager.NetEmulationConfig is NetEmulationConfig


def test_numbers_of_data_parallel_ranks_share_each_minibatch_by_whole_groups():
    config = SimpleNamespace(
        algorithm=SimpleNamespace(group_size=4, n_minibatches=2), data=SimpleNamespace(rollout_batch_size=24)
    )
    assert get_valid_dp_sizes(config, 16, 2) == [1, 2, 3, 4, 6]
    config.algorithm.n_minibatches = 5
    with pytest.raises(ConfigError, match="96 samples a step do not make 5 minibatches"):
        get_valid_dp_sizes(config, 16, 2)


def test_names_of_channels_and_queues_tell_instances_apart():
    names = [
        get_scheduler_channel(component, rank) for component in ("rollout", "actor") for rank in range(2)
    ]
    assert len(set(names)) == 4
    assert get_scheduler_channel("actor") == get_scheduler_channel("actor", 0)
    assert get_scheduler_request_queue() != get_scheduler_response_queue()


def test_groups_that_change_are_an_error_where_they_are_used():
    for use in (
        lambda: SchedulerWorker.create_group(None, None),
        lambda: RolloutScalingScheduler(0, None, None),
    ):
        with pytest.raises(
            (TypeError, AttributeError), match="groups keep their sizes while they run"
        ) as caught:
            use()
        assert "auto_scheduler: false" in str(caught.value)
