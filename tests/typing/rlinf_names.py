"""A program with RLinf's names: every line that ends in `# wrong` has a mistake, and no other line has."""
# ruff: noqa: F401

from collections.abc import AsyncIterator, Iterator
from logging import Logger
from typing import Any, assert_type

from rlinf.scheduler import (
    AcceleratorType,
    Channel,
    Cluster,
    CollectiveGroupOptions,
    CommMapper,
    ComponentPlacement,
    FlexiblePlacementStrategy,
    FrankaHWInfo,
    GroupStream,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Placement,
    PlacementStrategy,
    Tracer,
    Worker,
    WorkerAddress,
    WorkerGroup,
    WorkerInfo,
    build_send_key,
    decoupled_build_recv_plan,
    get_batch_size,
    get_group_world_size,
    infer_batch_size,
    merge_batches,
    split_batch,
    split_channel_message,
)
from rlinf.scheduler import WorkerGroupFuncResult as Handle
from rlinf.scheduler import Wroker as _Wroker  # wrong
from rlinf.scheduler.cluster import load_extension_module as _load  # wrong
from rlinf.scheduler.cluster import load_user_extension_module
from rlinf.scheduler.cluster.node import NodeGroupInfo, NodeInfo
from rlinf.scheduler.collective import AsyncRouteWork, AsyncWork
from rlinf.scheduler.dynamic_scheduler.utils import get_valid_dp_sizes
from rlinf.scheduler.errors import ChanelClosed as _Closed  # wrong
from rlinf.scheduler.errors import ChannelClosed, ChannelFull
from rlinf.scheduler.hardware import AcceleratorUtil, FrankaConfig, HardwareInfo
from rlinf.scheduler.manager import WorkerManager
from rlinf.scheduler.worker import Wroker as _Worker  # wrong
from rlinf.scheduler.worker.worker_group import WorkerRank


class Rollout(Worker):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size

    @Worker.timer("generate")
    def generate(self, prompts: list[str], temperature: float = 1.0) -> int:
        with self.worker_timer("inner"), self.worker_timer():
            return len(prompts)

    @Worker.timer
    def train(self, steps: int) -> dict[str, float]:
        return self.pop_execution_times()

    async def serve(self, port: int) -> str:
        return str(port)

    def play(self, steps: int) -> Iterator[float]:
        yield 0.0

    async def listen(self) -> AsyncIterator[bytes]:
        yield b""

    def asks_who_it_is(self) -> None:
        assert_type(self.worker_address, WorkerAddress)
        assert_type(self.worker_address.get_name(), str)
        assert_type(self.worker_address.root_group_name, str)
        assert_type(self.worker_address.get_child_address(0), WorkerAddress)
        assert_type(self.worker_address.get_parent_address(), WorkerAddress | None)
        assert_type(self.worker_info, WorkerInfo)
        assert_type(self.worker_info.accelerator_type, AcceleratorType | None)
        assert_type(self.worker_info.rank + self.worker_info.group_world_size, int)
        assert_type(self.worker_info.available_accelerators, tuple[int, ...])
        assert_type(self.worker_info.address, WorkerAddress)
        assert_type(self._rank + self._world_size + self._cluster_node_rank, int)
        assert_type(self._worker_address, WorkerAddress)
        assert_type(self._group_name, str)
        assert_type(self._timer_metrics, dict[str, float])
        assert_type(self._logger, Logger)
        assert_type(self.logger, Logger)
        assert_type(Worker.logger, Logger)
        assert_type(self._manager_proxy, WorkerManager)
        assert_type(self.manager_proxy.get_worker_info(self.worker_address), WorkerInfo | None)
        assert_type(Worker.accelerator_type, AcceleratorType)
        assert_type(self.accelerator_type, AcceleratorType)
        assert_type(Worker.torch_device_type, str)
        assert_type(self.has_accelerator, bool)
        assert_type(self.hardware_type, str)
        assert_type(self.get_parent_rank(), int)
        assert_type(self.acquire_free_port(max_port_num=30_000), int)
        assert_type(self.pop_execution_time("generate"), float)
        assert_type(Worker.current_worker, Worker | None)
        assert_type(self.address, WorkerAddress)
        assert_type(self.placement, Placement)
        assert_type(self.placement.accelerator_type, AcceleratorType)
        assert_type(self.placement.local_accelerator_rank, int)
        self._rank = 1
        self.log_on_first_rank("ready")
        self.start_profile(step_idx=1)
        self.stop_profile()
        self.worker_adress.get_name()  # wrong
        self.worker_info.cluster_node.bit_length()  # wrong
        with self.device_lock, self.device_lock():
            self.train(1)

    async def exchanges(self, channel: Channel, options: CollectiveGroupOptions, tensor: Any) -> None:
        self.send(object=1, dst_group_name="actor", dst_rank=0)
        self.send(1, "actor", [0, 1], async_op=True, options=options).wait()
        await self.recv("actor", 0, async_op=True, options=options).async_wait()
        self.recv(src_group_name="actor", src_rank=0)
        self.broadcast(1, groups=[("actor", 0), ("rollout", [0, 1])], options=options)
        self.send_tensor(tensor, "actor", 0, async_op=True, options=options).wait()
        self.recv_tensor(tensor, "actor", 0, async_op=True, options=options).wait()
        self.send_to("actor", channel, data={"a": [1]}, batch_size=4, tag="x", async_op=True).wait()
        self.send_to("actor", channel, {"a": [1]}, batch_size=4, enable_p2p=False)
        self.recv_from("actor", channel, batch_size=4, tag="x", merge_fn=merge_batches)
        self.recv_from("actor", channel, batch_size=4, async_op=True).done()
        self.send_to("actor", {"a": [1]})
        self.send_to("actor", {"a": [1]}, channel=channel, async_op=True).wait()
        self.recv_from("actor", channel=channel)
        self.send_to("actor", channel, dta={"a": [1]}, batch_size=4)  # wrong
        self.recv_from("actor", channel, batch_size="four")  # wrong
        other = self.connect_channel("other")
        made = self.create_channel("made", group_affinity="actor", group_rank_affinity=0, maxsize=3)
        assert_type(other, Channel)
        assert_type(made, Channel)
        AsyncRouteWork([channel.get(async_op=True)], lambda parts: parts[0]).wait()


def channels() -> None:
    channel = Channel.create("items", maxsize=0, distributed=False, node_rank=0, local=False)
    channel.put(1, weight=2, key="a", async_op=True).wait()
    channel.put(item=1)
    channel.get(key="a", async_op=True).done()
    channel.get_batch(target_weight=3, key="a")
    channel.put_nowait(1, weight=1, key="a")
    assert_type(channel.qsize(key="a"), int)
    assert_type(channel.is_local, bool)
    channel.get(kee="a")  # wrong
    work: AsyncWork[Any] = channel.get(async_op=True)
    work.then(str).done()


def placements(cluster: Cluster, config: dict[str, Any]) -> None:
    placement = ComponentPlacement(config, cluster)
    assert_type(placement.components, tuple[str, ...])
    assert_type(placement.get_world_size("actor"), int)
    assert_type(placement.get_hardware_ranks("actor"), list[int])
    assert_type(placement.get_strategy("actor"), PlacementStrategy)
    assert_type(placement._component_rank_map, dict[str, dict[tuple[int, ...], list[int]]])
    packed = PackedPlacementStrategy(0, 3, num_hardware_per_process=1, stride=1, node_group_label="a800")
    packed = PackedPlacementStrategy(start_hardware_rank=0, end_hardware_rank=3)
    flexible = FlexiblePlacementStrategy([[0], [1]], node_group_label="a800")
    node = NodePlacementStrategy(node_ranks=[0, 0])
    assert_type(packed.get_placement(cluster, isolate_accelerator=True), list[Placement])
    assert_type(flexible.get_placement(cluster), list[Placement])
    first = node.get_placement(cluster)[0]
    assert_type(first.isolate_accelerator, bool)
    assert_type(first.accelerator_type, AcceleratorType)
    assert_type(first.local_accelerator_rank, int)
    placement.get_strategie("actor")  # wrong
    placement.get_world_size(3)  # wrong


def nodes(cluster: Cluster) -> None:
    assert_type(cluster.get_node_info(0), NodeInfo)
    assert_type(cluster.get_node_info(0).num_accelerators, int)
    assert_type(cluster.get_node_group("a800"), NodeGroupInfo | None)
    assert_type(cluster.get_node_ip(0), str)
    assert_type(Cluster.has_initialized(), bool)
    assert_type(Cluster.find_free_port(), int)
    assert_type(AcceleratorUtil.get_accelerator_env_var(AcceleratorType.NPU, ["0"]), dict[str, str])
    load_user_extension_module()
    cluster.get_node_information(0)  # wrong


def robots(info: HardwareInfo) -> None:
    if isinstance(info, FrankaHWInfo):
        assert_type(info.config, FrankaConfig)
        assert_type(info.config.robot_ip, str | None)
        assert_type(info.model, str)


def routes(proxy: WorkerManager) -> None:
    assert_type(
        CommMapper.get_dst_ranks(batch_size=8, src_world_size=2, dst_world_size=4, src_rank=0),
        list[tuple[int, int]],
    )
    assert_type(get_group_world_size(proxy, "actor"), int)
    assert_type(get_batch_size([1]), int)
    assert_type(infer_batch_size([1]), int)
    assert_type(split_channel_message("3_0_train_x"), tuple[int, int, str, str])
    assert_type(len(split_batch([1, 2], [1, 1])), int)
    build_send_key("actor", "rollout", 0, 1, tag="x")
    plan = decoupled_build_recv_plan(
        src_group_name="a",
        dst_group_name="b",
        recv_rank=0,
        src_world_size=1,
        dst_world_size=1,
        tag=None,
        batch_size=4,
    )
    plan.entires.append(1)  # wrong
    assert_type(get_valid_dp_sizes({}, 8, 1), list[int])


def spans() -> None:
    Tracer.trace_begin("step")
    Tracer.trace_end("step")
    with Tracer.trace_span("step", "train"):
        pass


@Tracer.trace_func("train")
def step(number: int) -> str:
    return str(number)


assert_type(step(3), str)


async def calls(cluster: Cluster, strategy: PlacementStrategy) -> None:
    group = Rollout.create_group(64).launch(cluster, strategy, "rollout")
    assert_type(group, WorkerGroup[Rollout])
    assert_type(group.worker_group_name, str)
    assert_type(group.worker_info_list, list[WorkerRank])
    assert_type(group.worker_info_list[0].rank, int)
    assert_type(group.name, str)
    assert_type(group.placements, list[Placement])
    assert_type(group.execute_on(0), WorkerGroup[Rollout])
    assert_type(group[0:2].worker_group_name, str)
    assert_type(group.retrying().worker_group_name, str)
    assert_type(group.scatter([1, 2]).worker_group_name, str)
    assert_type(WorkerGroup.plain(group).worker_group_name, str)
    assert_type(WorkerGroup.from_group_name(Rollout, "rollout"), WorkerGroup[Rollout])
    group.worker_group_nmae.upper()  # wrong

    done = group.call(Rollout.generate, ["a"])
    assert_type(done, Handle[int])
    assert_type(done.wait(), list[int])
    assert_type(await done, list[int])
    assert_type(await done.async_wait(), list[int])
    assert_type(done.done(), bool)
    assert_type(done.consume_duration(), float)
    assert_type(done.consume_duration("mean"), float)
    assert_type(done.consume_durations(), dict[str, float])
    assert_type(done.consume_durations(return_per_rank=True), tuple[dict[str, float], list[dict[str, float]]])
    assert_type(group.execute_on(0).call(Rollout.serve, 80), Handle[str])
    assert_type(group.call(Rollout.play, 3), GroupStream[float])
    assert_type(group.call(Rollout.listen), GroupStream[bytes])
    assert_type(group.call(Rollout.train, 3).consume_durations(), dict[str, float])
    assert_type(group.get("hidden_size"), Handle[Any])
    done.consume_duration("median")  # wrong
    done.consume_durration()  # wrong
    group.call(Rollout.generate, "a text", 3)  # wrong
    group.call(Rollout.generat, ["a"])  # wrong

    handle: Handle[int] = group.generate(["a"])
    handle.consume_duration()
    for actions in group.play(3):
        actions.clear()
    handles: list[Handle[Any]] = [group.generate(["a"]), group.train(3)]
    for each in handles:
        each.wait()
