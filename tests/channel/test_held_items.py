"""Large items that stay on their producers' machines: held there, fetched from there, lost with them."""

import contextlib
import time
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from held_roles import (
    LARGE,
    array,
    give_up_a_put,
    hold,
    look,
    look_by_way_of_the_channel,
    number_in,
    put,
    put_large_and_small,
    put_past_a_holder,
    put_twice,
    take,
    take_by_way_of_the_channel,
)
from job_processes import DEADLINE_S, THERE, Job
from rlinf_scheduler.channel import Channel, held, wire
from rlinf_scheduler.channel.clients import KnownClient
from rlinf_scheduler.channel.features import explain, leases
from rlinf_scheduler.channel.features.explain import ExplainFeature
from rlinf_scheduler.channel.features.operations import OperationsFeature
from rlinf_scheduler.channel.held import HeldAt
from rlinf_scheduler.channel.remote_items import RemoteItem, RemoteItems
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.errors import (
    ChannelArgumentError,
    ChannelError,
    ChannelTimeout,
    ChannelUnanswered,
    ItemsLost,
    PeerDied,
)
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.messages import Deliver, Refuse
from rlinf_scheduler.queueing.wanted import Limits
from served import DrivenRuntime, served
from waits import wait_until


@pytest.fixture
def job():
    with Job("tcp") as job:
        yield job


@pytest.fixture
def holder(job):
    peer = job.start(hold, where=THERE, name="holder:0")
    assert peer.receive() == "holds"
    return peer


def num_held(holder):
    holder.pipe.send("how many")
    return holder.receive()


def until_held(holder, count):
    deadline = time.monotonic() + DEADLINE_S
    while num_held(holder) != count:
        assert time.monotonic() < deadline, num_held(holder)


def until_taken(holder, is_enough):
    """Return when the holder answers for so much in its machine's ledger."""
    deadline = time.monotonic() + DEADLINE_S
    holder.pipe.send("how much")
    while not is_enough(taken := holder.receive()):
        assert time.monotonic() < deadline, taken
        holder.pipe.send("how much")


def lost_from_sight(job):
    """Return when this process, which holds the channel, has seen the holder's end."""
    deadline = time.monotonic() + DEADLINE_S
    with contextlib.suppress(PeerDied):
        while time.monotonic() < deadline:
            job.driver.directory.lookup("holder:0", timeout_s=0.0)
        pytest.fail("the holder's end was not seen")


def give_back(channel):
    with channel.lease(timeout_s=DEADLINE_S) as lease:
        assert number_in(lease.item) == 1
        lease.nack()


def producer_of(job, *numbers, name="env:0"):
    peer = job.start(put, "items", numbers, where=THERE, name=name)
    assert peer.receive() == "put"
    return peer


def test_an_item_comes_from_its_producers_machine_and_is_released_there(job, holder):
    channel = Channel.create("items")
    producer_of(job, 1, 2, 3)
    assert num_held(holder) == 3
    assert "3 items of 314" in str(channel.explain())
    assert [number_in(channel.get(timeout_s=DEADLINE_S)) for _ in range(3)] == [1, 2, 3]
    until_held(holder, 0)


def test_items_outlive_their_producer(job, holder):
    channel = Channel.create("items")
    producer_of(job, 1, 2).kill()
    assert [number_in(channel.get(timeout_s=DEADLINE_S)) for _ in range(2)] == [1, 2]
    until_held(holder, 0)


def test_a_consumer_on_the_producers_machine_reads_shared_memory(job, holder):
    Channel.create("items")
    producer_of(job, 1, 2, 3)
    numbers, kinds = job.start(take, "items", 3, where=THERE).result()
    assert (numbers, kinds) == ([1, 2, 3], {"memory"})
    until_held(holder, 0)


def test_a_consumer_on_a_third_machine_fetches_from_the_producers(job, holder):
    channel = Channel.create("items")
    producer_of(job, 1, 2, 3)
    assert job.start(take, "items", 3, where="elsewhere").result() == ([1, 2, 3], {"bytes"})
    until_held(holder, 0)
    assert channel.qsize() == 0


def test_a_batch_comes_from_several_machines_in_order(job, holder):
    other = job.start(hold, where="elsewhere", name="holder:1")
    assert other.receive() == "holds"
    channel = Channel.create("items")
    producer_of(job, 1, 2)
    channel.put(array(3))
    peer = job.start(put, "items", [4], where="elsewhere")
    assert peer.receive() == "put"
    channel.put("a small one")
    batch = channel.get_batch(max_items=5, min_items=5, timeout_s=DEADLINE_S)
    *large, small = batch
    assert ([number_in(item) for item in large], small) == ([1, 2, 3, 4], "a small one")
    assert batch.versions == [1, 2, None, 4, None]


def test_what_was_held_by_a_dead_process_is_lost_and_one_getter_is_told_which(job, holder):
    channel = Channel.create("items")
    producer_of(job, 1, 2)
    producer_of(job, 3, name="env:1")
    channel.put("a small one")
    holder.kill()
    said = r"queue 'default': 2 items put by 'env:0' went with .*; 1 item put by 'env:1' went with "
    with pytest.raises(ItemsLost, match=said):
        channel.get(timeout_s=DEADLINE_S)
    assert channel.get(timeout_s=DEADLINE_S) == "a small one"
    stats = channel.stats()
    assert (stats.num_puts, stats.num_lost, stats.num_gets, stats.num_items) == (4, 3, 1, 0)
    assert "3 lost with their nodes or devices" in str(channel)


def test_a_getter_that_waits_is_told_of_a_loss(job, holder):
    channel = Channel.create("items")
    producer_of(job, 1, 2)
    waiting = channel.get_batch(max_items=3, min_items=3, async_op=True, timeout_s=DEADLINE_S)
    channel.qsize()
    holder.kill()
    with pytest.raises(ItemsLost, match="2 items put by 'env:0'"):
        waiting.wait()


def test_what_is_on_lease_is_lost_only_if_it_comes_back(job, holder, caplog):
    channel = Channel.create("items")
    producer_of(job, 1, 2, 3)
    first, second = channel.lease(), channel.lease()
    with first as one:
        other = second.__enter__()
        assert [number_in(lease.item) for lease in (one, other)] == [1, 2]
        holder.kill()
        lost_from_sight(job)
        with pytest.raises(ItemsLost, match="1 item put by 'env:0'"):
            channel.get(timeout_s=DEADLINE_S)
    other.nack()
    with pytest.raises(ItemsLost, match="1 item put by 'env:0'"):
        channel.get(timeout_s=DEADLINE_S)
    assert channel.stats().num_lost == 2
    (said,) = [record.getMessage() for record in caplog.records if "went with" in record.getMessage()]
    assert "3 items put by 'env:0' went with" in said
    assert said.endswith(
        "; 1 of these in queues, which are lost, 2 with consumers or subscriptions, or dead letters"
    )


def test_a_dead_letter_whose_bytes_are_lost_says_so(job, holder):
    channel = Channel.create("items", max_attempts=1)
    producer_of(job, 1)
    give_back(channel)
    (letter,) = channel.dead_letters()
    holder.kill()
    lost_from_sight(job)
    with pytest.raises(ChannelError, match="the item put by 'env:0' went with"):
        _ = letter.item


def test_a_dead_letter_is_read_and_put_back(job, holder):
    channel = Channel.create("items", max_attempts=1)
    producer_of(job, 1)
    give_back(channel)
    (letter,) = channel.dead_letters()
    assert number_in(letter.item) == 1
    letter.put_back()
    assert number_in(channel.get(timeout_s=DEADLINE_S)) == 1


def test_items_that_come_back_are_still_there(job, holder):
    channel = Channel.create("items")
    producer_of(job, 1, 2)
    assert number_in(channel.peek()) == 1
    give_back(channel)
    assert [number_in(channel.get(timeout_s=DEADLINE_S)) for _ in range(2)] == [1, 2]


def test_what_another_machine_looks_at_is_whole_though_it_is_taken_and_written_to(job, monkeypatch):
    """Whoever looks is stopped as it is answered, so most of the answer is still here then."""
    channel, show, started = Channel.create("items"), ExplainFeature._show, Future()

    def show_to_one_that_is_stopped(*about):
        started.result(DEADLINE_S).stop()
        show(*about)

    monkeypatch.setattr(ExplainFeature, "_show", show_to_one_that_is_stopped)
    channel.put(np.zeros(64 << 20, np.uint8))
    peer = job.start(look, "items", where=THERE)
    started.set_result(peer)
    wait_until(lambda: _is_stopped(peer))
    item = channel.get(timeout_s=DEADLINE_S)
    item[:] = 7
    peer.go_on()
    assert peer.result() == {0}


def test_who_does_not_reach_the_holder_looks_by_way_of_the_channel(job, holder):
    channel = Channel.create("items")
    producer_of(job, 1)
    assert job.start(look_by_way_of_the_channel, "items", where="elsewhere").result() == {1}
    assert number_in(channel.get(timeout_s=DEADLINE_S)) == 1


def test_a_look_at_what_a_stopped_holder_has_ends_and_says_where_it_is(job, holder, monkeypatch):
    monkeypatch.setattr(held, "FETCH_TIMEOUT_S", 0.3)
    channel = Channel.create("items")
    producer_of(job, 1)
    holder.stop()
    with pytest.raises(ChannelUnanswered, match=r"peek not .*\(1 of its items is on its way from node 127\."):
        channel.peek()
    holder.go_on()
    assert number_in(channel.get(timeout_s=DEADLINE_S)) == 1


def test_a_look_by_way_of_the_channel_at_what_a_stopped_holder_has_ends_and_says_where_it_is(
    job, holder, monkeypatch
):
    monkeypatch.setattr(explain, "FETCH_TIMEOUT_S", 0.3)
    Channel.create("items")
    producer_of(job, 1)
    holder.stop()
    looks = job.start(look_by_way_of_the_channel, "items", where="elsewhere")
    where = r"1 item of \d+ bytes is on node 127\.0\.0\.1, where nobody has answered for \d+\.\d s"
    with pytest.raises(ChannelUnanswered, match=where):
        looks.result()
    holder.go_on()


def test_a_dead_letter_that_a_stopped_holder_has_says_where_it_is(job, holder, monkeypatch):
    monkeypatch.setattr(leases, "FETCH_TIMEOUT_S", 0.3)
    channel = Channel.create("items", max_attempts=1)
    producer_of(job, 1)
    give_back(channel)
    (letter,) = channel.dead_letters()
    holder.stop()
    with pytest.raises(
        ChannelError, match=r"is on node 127\.0\.0\.1, where nobody has answered for \d+\.\d s"
    ):
        _ = letter.item
    holder.go_on()
    assert number_in(letter.item) == 1


def test_what_a_stopped_holder_has_is_asked_for_as_long_as_somebody_waits_for_it(job, holder, monkeypatch):
    monkeypatch.setattr(held, "FETCH_TIMEOUT_S", 0.2)
    bring, brought, late = RemoteItems.bring, RemoteItems._brought, []

    def note(items, *about):
        brought(items, *about)
        late.append(about[-1])

    monkeypatch.setattr(RemoteItems, "_brought", note)
    channel = Channel.create("items")
    producer_of(job, 1)
    holder.stop()
    getter = channel.get(async_op=True)
    wait_until(lambda: len(late) > 1)
    getter.cancel()
    channel.qsize()  # asked behind it, so nobody waits any more
    asked = []
    monkeypatch.setattr(RemoteItems, "bring", lambda *about: (asked.append(about), bring(*about)))
    num_late = len(late)
    wait_until(lambda: len(late) > num_late)
    assert not asked
    holder.go_on()
    assert number_in(channel.get(timeout_s=DEADLINE_S)) == 1


def _is_stopped(peer):
    return "State:\tT" in Path(f"/proc/{peer.pid}/status").read_text(encoding="ascii")


def test_the_bound_in_bytes_counts_what_is_elsewhere(job, holder):
    channel = Channel.create("items", max_bytes=2 * LARGE + 4096)
    peer = job.start(put, "items", [1, 2, 3], where=THERE)
    until_held(holder, 3)
    # The holder has it before the channel's process hears of it.
    wait_until(lambda: [each.depth.num_putters for each in channel.explain().queues] == [1])
    assert [number_in(channel.get(timeout_s=DEADLINE_S)) for _ in range(3)] == [1, 2, 3]
    assert peer.receive() == "put"
    until_held(holder, 0)


def test_a_put_that_is_given_up_is_not_held_any_more(job, holder):
    Channel.create("items", maxsize=1)
    peer = job.start(give_up_a_put, "items", where=THERE)
    assert peer.receive() == "put one"
    assert isinstance(peer.result(), ChannelTimeout)
    until_held(holder, 1)


def test_without_a_holder_items_pass_the_channels_process(job):
    channel = Channel.create("items")
    producer_of(job, 1, 2)
    assert channel.explain().elsewhere == ()
    assert [number_in(channel.get(timeout_s=DEADLINE_S)) for _ in range(2)] == [1, 2]


def test_items_are_held_by_the_channel_where_that_is_wanted(job, holder):
    channel = Channel.create("items", holds="channel")
    producer_of(job, 1, 2)
    assert num_held(holder) == 0
    holder.kill()
    assert [number_in(channel.get(timeout_s=DEADLINE_S)) for _ in range(2)] == [1, 2]


def test_a_deleted_channel_leaves_nothing_with_holders(job, holder):
    channel = Channel.create("items")
    producer_of(job, 1, 2)
    assert num_held(holder) == 2
    channel.delete()
    until_held(holder, 0)


def test_puts_of_one_producer_keep_their_order_whether_they_are_held_or_not(job, holder):
    channel = Channel.create("items")
    peer = job.start(put_large_and_small, "items", 20, where=THERE)
    assert peer.receive() == "put"
    got = [channel.get(timeout_s=DEADLINE_S) for _ in range(40)]
    assert [item if isinstance(item, int) else number_in(item) for item in got] == [
        number // 2 for number in range(40)
    ]


@pytest.mark.usefixtures("patient")
def test_a_timeout_says_what_is_being_fetched(job, holder):
    channel = Channel.create("items")
    producer_of(job, 1)
    holder.stop()
    with pytest.raises(ChannelTimeout, match=r"1 of its items is on its way from node 127\.0\.0\.1"):
        channel.get(timeout_s=0.5)
    holder.go_on()
    assert number_in(channel.get(timeout_s=DEADLINE_S)) == 1


def test_holds_is_one_of_two_words():
    with pytest.raises(ChannelArgumentError, match="holds is 'node' or 'channel', not 'disk'"):
        Channel.create("items", holds="disk")


def test_a_checkpoint_has_the_bytes_of_items_that_are_elsewhere(job, holder, tmp_path):
    channel = Channel.create("items")
    producer_of(job, 1, 2)
    channel.save(tmp_path / "items")
    assert num_held(holder) == 2  # it goes on as it was
    twin = Channel.create("restored", restore=tmp_path / "items")
    assert [number_in(twin.get(timeout_s=DEADLINE_S)) for _ in range(2)] == [1, 2]


def test_a_checkpoint_of_what_was_lost_is_of_the_rest(job, holder, tmp_path):
    channel = Channel.create("items")
    producer_of(job, 1)
    channel.put("stays")
    holder.kill()
    lost_from_sight(job)
    channel.save(tmp_path / "items")
    assert list(Channel.create("restored", restore=tmp_path / "items").drain()) == ["stays"]


def test_who_reaches_no_holder_gets_items_by_way_of_the_channel(job, holder):
    channel = Channel.create("items")
    producer_of(job, 1, 2)
    taker = job.start(take_by_way_of_the_channel, "items", 2, where="elsewhere")
    assert taker.result() == ([1, 2], {"bytes"})
    until_held(holder, 0)
    assert channel.stats().num_lost == 0


def test_who_reaches_no_holder_is_told_of_a_loss(job, holder):
    Channel.create("items")
    producer_of(job, 1)
    holder.kill()
    taker = job.start(take_by_way_of_the_channel, "items", 1, where="elsewhere")
    with pytest.raises(ItemsLost, match="1 item put by 'env:0'"):
        taker.result()


def test_what_is_left_of_a_batch_goes_to_the_next_in_line_though_another_node_holds_it():
    server = served(DrivenRuntime())
    state = server.state
    lost, left = (
        RemoteItem(HeldAt(Endpoint(name, name, "", ""), 1, 1, name), "env:0") for name in ("a", "b")
    )
    for ticket, payload in enumerate((lost, left), start=1):
        state.apply(wire.Put(ticket, "default"), "p", Item(payload))
    state.apply(wire.Get(3, "default", limits=Limits(2, 2)), "c")
    state.apply(wire.Get(4, "default"), "d")
    state.lose_items(lambda payload: "is lost" if payload is lost else "")
    resend = server.feature(OperationsFeature)._resend
    told = resend(KnownClient("c", None, "c"), wire.Resend(3), iter(()))
    assert [(type(each), each.client, each.ticket) for each in told] == [(Refuse, "c", 3), (Deliver, "d", 4)]
    assert told[1].items[0].payload is left


def test_a_holder_that_is_gone_is_told_what_it_need_not_keep_if_there_is_something():
    told, lost = [], []
    runtime = DrivenRuntime()
    runtime.notify = lambda peer, _service, keep: told.append((peer.process_id, keep.claimed, keep.released))
    known = RemoteItems(runtime, lost.append)
    items = [known.receive(HeldAt(Endpoint(name, name, "", ""), 1, 1, name), "env:0") for name in ("a", "b")]
    del items[0]
    runtime.run_until(2)
    told.clear()
    known._lose("a")
    assert (told, lost) == ([], [])
    known._lose("b")
    assert told == [("b", [], [1])]
    assert lost[0](items[0])


def test_what_a_dead_producer_has_left_counts_among_what_the_machine_has(job, holder):
    channel = Channel.create("items")
    producer_of(job, 1, 2, 3).kill()
    until_taken(holder, lambda taken: 3 * LARGE <= taken < 4 * LARGE)
    assert [number_in(channel.get(timeout_s=DEADLINE_S)) for _ in range(3)] == [1, 2, 3]
    until_taken(holder, lambda taken: taken == 0)


def test_a_put_that_is_late_says_that_the_holder_has_not_taken_it(job, holder):
    Channel.create("items")
    peer = job.start(put_twice, "items", where=THERE)
    assert peer.receive() == "put one"
    holder.stop()
    peer.pipe.send("put another")
    error = peer.result()
    holder.go_on()
    assert isinstance(error, ChannelTimeout)
    assert "the process that holds this node's items has not taken it yet" in str(error)
    until_held(holder, 1)


def test_what_a_holder_takes_too_late_is_dropped_there(job, holder):
    channel = Channel.create("items")
    peer = job.start(put_past_a_holder, "items", where=THERE)
    assert peer.receive() == "put"
    holder.stop()
    peer.pipe.send("put another")
    assert peer.receive() == "put"
    holder.go_on()
    peer.pipe.send("put a third")
    assert peer.receive() == "put"
    until_held(holder, 2)
    assert [number_in(channel.get(timeout_s=DEADLINE_S)) for _ in range(3)] == [1, 2, 3]
    until_held(holder, 0)


@pytest.mark.usefixtures("patient")
def test_a_lease_lasts_while_its_items_are_fetched_and_ends_when_nobody_wants_them(job, holder):
    channel = Channel.create("items")
    producer_of(job, 1)
    holder.stop()
    with (
        pytest.raises(ChannelTimeout, match="is on its way"),
        channel.lease(ttl_s=0.2, timeout_s=1.0),
    ):
        pytest.fail("it has come")
    holder.go_on()
    with channel.lease(timeout_s=DEADLINE_S) as lease:
        assert (number_in(lease.item), lease.attempt) == (1, 1)
