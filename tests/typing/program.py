"""A program with planted mistakes: every line that ends in `# wrong` has one, and no other line has."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type

from rlinf.scheduler import (
    Cluster,
    GroupResult,
    GroupStream,
    Worker,
    WorkerGroup,
    WorkerGroupFuncResult,
    wait_all,
)


class Policy(Worker):
    def __init__(self, hidden_size: int, name: str = "policy") -> None:
        super().__init__()
        self.hidden_size = hidden_size

    def act(self, observation: list[float], temperature: float = 1.0) -> int:
        with self.timer("generate"):
            return len(observation)

    @Worker.timer
    def train(self, batch: list[int]) -> dict[str, float]:
        return {}

    @Worker.timer("learning")
    def learn(self, steps: int) -> str:
        return "done"

    async def serve(self, port: int) -> str:
        return str(port)

    def play(self, steps: int) -> Iterator[float]:
        yield 0.0

    async def listen(self) -> AsyncIterator[bytes]:
        yield b""

    def exchange(self) -> None:
        assert_type(self.send(1, "actor", 0), None)
        self.send(1, "actor", 0, async_op=True).wait()
        self.send(1, "actor", 0).wait()  # wrong
        self.send(1, "actor")  # wrong
        self.recv("actor", 0, async_op=True).wait()
        self.recv("actor", None)  # wrong
        self.broadcast(groups=[("actor", 0)], async_op=True).done()
        self.broadcast(1, groups=["actor"])  # wrong
        with self.device_lock(timeout_s=3.0):
            self.acquire_free_port().bit_length()
        self.train(3)  # wrong
        assert_type(self.learn(3), str)


class Other(Worker):
    def score(self, value: int) -> int:
        return value


with Cluster(simulate="2") as cluster:
    group = Policy.create_group(64, name="p").launch(cluster, name="policy")
    Policy.create_group("64")  # wrong
    Policy.create_group(64, nmae="p")  # wrong
    Policy.create_group()  # wrong
    Other.create_group()
    Other.create_group(1)  # wrong

    assert_type(group.call(Policy.act, [1.0]), WorkerGroupFuncResult[int])
    known: GroupResult[int] = group.call(Policy.act, [1.0])
    assert_type(known.wait(), list[int])
    assert_type(group.call(Policy.act, [1.0]).wait(), list[int])
    assert_type(group.call(Policy.train, [1]), WorkerGroupFuncResult[dict[str, float]])
    assert_type(group.call(Policy.serve, 80), WorkerGroupFuncResult[str])
    assert_type(group.call(Policy.play, 3), GroupStream[float])
    assert_type(group.call(Policy.listen), GroupStream[bytes])
    assert_type(group[0:1].scatter([1]).call(Policy.learn, 1).wait(), list[str])
    group.call(Policy.act, "no list")  # wrong
    group.call(Policy.act, [1.0], temprature=0.5)  # wrong
    group.call(Policy.act)  # wrong
    group.call(Other.score, 1)  # wrong
    group.call(Policy.trian, [1])  # wrong

    # Not looked into: any name may be a method of the group's class.
    assert_type(group.act([1.0]), Any)
    assert_type(group.scatter([[1.0], [2.0]]).act(temperature=0.5), Any)
    group.act("no list").durations(reduce="median")
    alive = group.act
    assert_type(alive([1.0]), Any)
    for observation in group[0:1].play(3):
        alive(observation)
    assert_type(group.execute_on(1), WorkerGroup[Policy])
    assert_type(WorkerGroup.plain(group).name, str)
    assert_type(WorkerGroup.shutdown(group), None)
    group.world_size()  # wrong

    typed = group.call(Policy.act, [1.0])
    assert_type(typed.durations(reduce="max"), dict[str, float])
    assert_type(typed.durations(reduce=None), dict[str, list[float]])
    typed.durations(reduce="median")  # wrong
    wait_all([typed, group.get("hidden_size")], fail_fast=True)
    wait_all([3])  # wrong
    for values in group.call(Policy.play, 3):
        assert_type(values, list[float])
