"""Calls of groups, for mypy with the plugin: every line that ends in `# wrong` has a mistake, and no other line has."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, ParamSpec, TypeVar, assert_type, overload

from rlinf.scheduler import Cluster, GroupResult, GroupStream, Placement, Worker, WorkerGroup

P = ParamSpec("P")
R = TypeVar("R")


class Traced(Generic[P, R]):
    def __init__(self, function: Callable[P, R]) -> None:
        self.function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)


@Traced
def count(steps: int) -> str:
    return str(steps)


class Base(Worker):
    def close(self, reason: str = "") -> None: ...


class Policy(Base):
    kinds = ("a", "b")
    traced = count

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.model: Callable[[int], int] = abs

    def act(self, observation: list[float], temperature: float = 1.0) -> int:
        return len(observation)

    @Worker.timer
    def train(self, batch: list[int]) -> dict[str, float]:
        return {}

    async def serve(self, port: int) -> str:
        return str(port)

    def play(self, steps: int) -> Iterator[float]:
        yield 0.0

    async def listen(self) -> AsyncIterator[bytes]:
        yield b""

    @overload
    def convert(self, value: int) -> str: ...
    @overload
    def convert(self, value: str) -> int: ...
    def convert(self, value: int | str) -> int | str:
        return value

    @staticmethod
    def add(one: int, other: int) -> int:
        return one + other

    @property
    def loss(self) -> float:
        return 0.5

    def _reset(self) -> None: ...


class Service(Policy):
    name = "a text"

    def shutdown(self, code: int) -> str:
        return str(code)

    @property
    def placements(self) -> float:
        return 0.5


AnyPolicy = TypeVar("AnyPolicy", bound=Policy)
AnyWorker = TypeVar("AnyWorker")


def of_some_class(
    group: WorkerGroup[AnyPolicy], anything: WorkerGroup[AnyWorker], untold: WorkerGroup[Any]
) -> None:
    assert_type(group.act([1.0]), GroupResult[int])
    group.act("no list")  # wrong
    anything.whatever(3)
    untold.whatever(3).wait()


with Cluster(simulate="2") as cluster:
    group = Policy.create_group(64).launch(cluster, name="policy")

    assert_type(group.act([1.0]), GroupResult[int])
    assert_type(group.act([1.0], temperature=0.5).wait(), list[int])
    assert_type(group.train([1]), GroupResult[dict[str, float]])
    assert_type(group.serve(80), GroupResult[str])
    assert_type(group.play(3), GroupStream[float])
    assert_type(group.listen(), GroupStream[bytes])
    assert_type(group.convert(3), GroupResult[str])
    assert_type(group.convert("three"), GroupResult[int])
    assert_type(group.add(1, 2), GroupResult[int])
    assert_type(group.close(), GroupResult[None])
    assert_type(group.traced(3), GroupResult[str])

    group.act("no list")  # wrong
    group.act([1.0], temprature=0.5)  # wrong
    group.act()  # wrong
    group.act([1.0]).wiat()  # wrong
    group.act([1.0]).wait()[0].upper()  # wrong
    group.trian([1])  # wrong
    group.train("text")  # wrong
    group.serve("80")  # wrong
    group.convert(3.5)  # wrong
    group.close(3)  # wrong
    group.traced("three")  # wrong
    group._reset()  # wrong
    group.loss()  # wrong
    group.model(3)  # wrong
    group.kinds()  # wrong

    assert_type(group[0:1].act([1.0]), GroupResult[int])
    assert_type(group.execute_on(1).play(3), GroupStream[float])
    assert_type(group.name, str)

    service = Service.create_group(64).launch(cluster, name="service")
    assert_type(service.shutdown(3), GroupResult[str])
    assert_type(service[0].shutdown(3).wait(), list[str])
    service.shutdown("three")  # wrong
    assert_type(service.name, str)
    assert_type(service.placements, list[Placement])
    assert_type(WorkerGroup.shutdown(service), None)
    assert_type(WorkerGroup.plain(service).shutdown(), None)

    assert_type(group.scatter([[1.0], [2.0]]).act(temperature=0.5), GroupResult[int])
    group.scatter([[1.0], [2.0]]).atc()  # wrong

    alive = group.act
    assert_type(alive([1.0]), GroupResult[int])
    for values in group.play(3):
        assert_type(values, list[float])
    group.act = alive  # wrong
