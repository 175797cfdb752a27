"""RLinf's names of handles, options and channels, as its programs import them."""

import asyncio
import importlib
import subprocess
import sys
import threading

import pytest

import rlinf.scheduler
from rlinf.scheduler.channel import Channel, ChannelWorker, WeightedItem
from rlinf.scheduler.channel.channel import DEFAULT_KEY
from rlinf.scheduler.channel.channel_worker import LocalChannel
from rlinf.scheduler.collective import (
    AsyncChannelCommWork,
    AsyncRayWork,
    AsyncRouteWork,
    AsyncWork,
    Collective,
    CollectiveGroup,
    CollectiveGroupOptions,
    MultiChannelProcessGroup,
)
from rlinf_scheduler.comm import AsyncHandle
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import ChannelTimeout


@pytest.fixture
def channel():
    made = Channel.create("face", local=True)
    yield made
    made.delete()


def test_every_handle_is_an_async_work(channel):
    handle = channel.get(async_op=True)
    assert all(
        isinstance(handle, each) for each in (AsyncWork, AsyncChannelCommWork, AsyncRayWork, AsyncHandle)
    )
    channel.put("an item", key=DEFAULT_KEY)
    assert asyncio.run(handle.async_wait()) == "an item"


def test_a_routed_work_is_done_when_all_of_its_works_are_and_makes_one_result(channel):
    works = [channel.get(key=key, async_op=True) for key in ("a", "b")]
    calls = []
    routed = AsyncRouteWork(works, lambda results: calls.append(results) or sum(results))
    assert isinstance(routed, AsyncWork)
    channel.put(1, key="a")
    assert not routed.done()
    channel.put(2, key="b")
    assert routed.wait(60) == 3
    assert routed.done()
    assert asyncio.run(routed.async_wait()) == 3
    assert calls == [[1, 2]]
    assert AsyncRouteWork([], len).wait(60) == 0


def test_what_one_work_failed_with_is_the_routed_one_s_failure(channel):
    works = [channel.get(key="a", async_op=True), channel.get(key="b", async_op=True, timeout_s=0.01)]
    channel.put(1, key="a")
    with pytest.raises(ChannelTimeout):
        AsyncRouteWork(works, sum).wait(60)


def test_a_routed_work_of_works_that_end_at_the_same_moment_ends_once():
    sources = [Promise() for _ in range(8)]
    routed = AsyncRouteWork([AsyncHandle(each) for each in sources], sum)
    start = threading.Barrier(len(sources))

    def end(source):
        start.wait(60)
        source.set_result(1)

    threads = [threading.Thread(target=end, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    assert routed.wait(60) == len(sources)
    for thread in threads:
        thread.join(60)


def test_cancelling_a_routed_work_cancels_its_works(channel):
    work = channel.get(async_op=True)
    assert AsyncRouteWork([work], len).cancel()
    channel.put("an item")
    assert channel.get(timeout_s=60) == "an item"


def test_options_know_whether_they_say_anything():
    assert rlinf.scheduler.CollectiveGroupOptions is CollectiveGroupOptions
    assert CollectiveGroupOptions().is_empty_options()
    options = CollectiveGroupOptions(accel_max_ctas=2, accel_min_ctas=1, is_high_priority_stream=True)
    assert not options.is_empty_options()
    assert not options.use_ring_broadcast


def test_items_with_weights_are_in_the_order_of_these():
    assert WeightedItem(1, object()) < WeightedItem(2, object())
    assert WeightedItem(weight=1, item="a") == WeightedItem(weight=1, item="b")


def test_a_local_channel_is_a_channel(channel):
    assert isinstance(channel, LocalChannel)
    assert isinstance(channel, rlinf.scheduler.Channel)


@pytest.mark.parametrize("name", [ChannelWorker, Collective, CollectiveGroup, MultiChannelProcessGroup])
def test_parts_of_another_scheduler_can_be_imported_and_say_what_to_use(name):
    with pytest.raises(
        AttributeError, match=rf"{name.__name__}\.create_group is a part of RLinf's own .* use `"
    ):
        name.create_group()
    with pytest.raises(TypeError, match="use `"):
        name(maxsize=1)
    with pytest.raises(AttributeError, match="use `"):
        object.__new__(name).recv()
    assert getattr(importlib.import_module(name.__module__), name.__name__) is name


def test_a_name_that_nobody_has_is_no_name_of_the_face():
    with pytest.raises(AttributeError, match=r"module 'rlinf\.scheduler\.channel' has no attribute 'Chanel'"):
        rlinf.scheduler.channel.Chanel  # noqa: B018
    with pytest.raises(AttributeError, match=r"module 'rlinf\.scheduler' has no attribute 'Chanel'"):
        rlinf.scheduler.Chanel  # noqa: B018


def test_options_and_handles_are_imported_without_ray_and_torch():
    code = (
        "import sys; from rlinf.scheduler import CollectiveGroupOptions; import rlinf.scheduler.collective; "
        "sys.exit(any(name in sys.modules for name in ('ray', 'torch', 'pydantic')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
