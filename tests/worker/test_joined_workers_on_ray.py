"""Processes that ranks on Ray start, as workers below them: they have no part in Ray."""

import os
import select

import pytest

from joined_workers import DEADLINE_S, Nest
from launched import launched
from rlinf.scheduler import Channel, PackedPlacementStrategy

pytestmark = [pytest.mark.ray, pytest.mark.system]


@pytest.fixture
def groups(ray_cluster):
    """A rank on the first node, with one below it, and two on the second."""
    with launched(
        ray_cluster,
        nest=(Nest, PackedPlacementStrategy(0, 0)),
        far=(Nest, PackedPlacementStrategy(4, 5)),
    ) as groups:
        yield groups


def one(result):
    (value,) = result.wait(DEADLINE_S)
    return value


def test_what_ranks_start_by_every_means_exchanges_with_others_and_ends_with_them(groups):
    nest, far = groups
    pids = [one(nest.open(way, number))[1] for number, way in enumerate(("spawn", "fork", "subprocess"))]
    far.open("fork").wait(DEADLINE_S)
    for number in range(3):
        who = one(nest.ask(number, "who"))
        assert (who["address"], who["rank"]) == (f"nest:0/{number}", number)
        # A fork has what its rank has, and uses none of it.
        assert not who["is_in_ray"] or number == 1
        one(nest.ask(number, "send", number, "far", "1/0"))
        assert one(far.execute_on(1).ask(0, "recv", "nest", (0, number))) == number
    assert not who["has_ray"]
    one(nest.ask(2, "publish", "policy", 3.0))
    assert one(far.execute_on(0).ask(0, "fetch", "policy")) == (1, 3.0 * (1 << 16))
    one(far.execute_on(1).ask(0, "create", "of a child"))
    one(nest.ask(1, "put", "of a child", ["item"]))
    assert Channel.connect("of a child").get(timeout_s=DEADLINE_S) == "item"
    assert one(nest.ask(1, "title")).startswith("nest:0/1")
    told = one(nest.ask(1, "launch_a_group"))
    assert "'nest:0/1' launches no groups: it is no process of Ray's" in str(told)
    descriptors = [os.pidfd_open(pid) for pid in pids]
    os.kill(one(nest.pid()), 9)
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], DEADLINE_S)[0]
        os.close(descriptor)
