"""`channel.explain()`: who waits for what, what is held, on every backend."""

from __future__ import annotations

import json
import threading

import explain_roles as roles

from rlinf_scheduler.channel import Channel

DEADLINE_S = 60.0


def explained(channel, holds):
    """The report, as soon as it is as the test wants it."""
    give_up = threading.Event()
    timer = threading.Timer(DEADLINE_S, give_up.set)
    timer.start()
    try:
        while True:
            report = channel.explain()
            if holds(report):
                return report
            assert not give_up.is_set(), str(report)
    finally:
        timer.cancel()


def test_the_first_items_of_a_channel_are_seen_in_its_string_and_stay_where_they_are(backend):
    channel = Channel.create(backend.name())
    for number in range(20):
        channel.put(f"item-{number}")
    line = str(channel)
    assert line.startswith(f"channel '{channel.name}': 20 items in 1 queue,")
    assert line.endswith(f"; next are {', '.join(repr(f'item-{number}') for number in range(16))} and 4 more")
    assert channel.drain() == [f"item-{number}" for number in range(20)]


def test_an_item_that_is_too_large_to_be_looked_at_is_not_in_the_string(backend):
    channel = Channel.create(backend.name())
    channel.put(bytes(2 << 20))
    assert "next are" not in str(channel)
    assert channel.qsize() == 1


def test_an_idle_channel_says_so_in_a_line(backend):
    channel = Channel.create(backend.name(), max_bytes=1 << 20)
    line = str(channel)
    assert line.startswith(f"channel '{channel.name}': 0 items in 0 queues, 0 bytes of 1 MiB")
    assert channel.explain().headline.startswith(line.split(",")[0])


def test_a_subscription_is_told_beside_the_queues_and_its_items_are_not_counted_again(backend):
    channel = Channel.create(backend.name())
    with channel.subscribe("log") as seen:
        for number in range(3):
            channel.put(number)
        with seen.lease():
            report = channel.explain()
    assert report.headline.startswith(
        f"channel '{channel.name}': 3 items in 1 queue, read by 1 subscription, "
    )
    assert "on lease" not in report.headline
    assert report.held_bytes == channel.stats().size_bytes


def test_items_and_their_ages_are_told_by_queue(backend):
    channel = Channel.create(backend.name())
    for number in range(3):
        channel.put(b"x" * 100, weight=number, queue_name=("step", 7))
    report = channel.explain()
    (queue,) = report.queues
    assert (queue.depth.name, queue.depth.num_items, queue.depth.weight) == (("step", 7), 3, 3)
    assert 0 <= queue.oldest_s < DEADLINE_S
    assert 0 <= channel.stats().oldest_s < DEADLINE_S
    assert report.num_puts == 3
    assert report.held_bytes == queue.depth.size_bytes > 300
    assert report.puts_per_s > 0


def test_who_waits_is_named_with_what_for_and_since_when(backend):
    channel = Channel.create(backend.name())
    other = backend.run(roles.wait_for_a_batch, channel)
    report = explained(channel, lambda report: any(queue.waiting for queue in report.queues))
    (waiting,) = report.queues[0].waiting
    assert waiting.operation == "get_batch of weight 512"
    assert waiting.who
    assert 0 <= waiting.since_s < DEADLINE_S
    assert waiting.who in {peer.name for peer in report.peers}
    assert f"waits  {waiting.who}: get_batch of weight 512, for" in str(report)
    channel.close()
    assert other.result(DEADLINE_S) == 0


def test_the_bound_that_makes_puts_wait_is_named(backend):
    channel = Channel.create(backend.name(), maxsize=1)
    channel.put("in")
    handle = channel.put("waits", async_op=True)
    report = explained(channel, lambda report: bool(report.queues[0].waiting))
    assert report.queues[0].limits == ("maxsize 1",)
    assert report.queues[0].waiting[0].operation.startswith("put of ")
    assert "full: maxsize 1" in str(report)
    channel.get(timeout_s=DEADLINE_S)
    handle.wait(DEADLINE_S)


def test_whoever_asks_is_named_until_somebody_takes_the_question(backend):
    channel = Channel.create(backend.name())
    handle = channel.ask("why", async_op=True)
    report = explained(channel, lambda report: bool(report.queues))
    (waiting,) = report.queues[0].waiting
    assert waiting.operation.startswith("ask, and nobody has taken")
    request = channel.next_request(timeout_s=DEADLINE_S)
    assert [each.operation for each in channel.explain().queues[0].held] == ["lease of 1 question"]
    request.reply("so")
    handle.wait(DEADLINE_S)


def test_a_rank_that_lags_behind_the_other_shards_is_named(backend):
    channel = Channel.create(backend.name())
    for number in range(8):
        channel.put(number, weight=1)
    shards = [channel.shard(index, 2, batch_items=2) for index in range(2)]
    for _ in range(4):
        shards[0].next_batch(timeout_s=DEADLINE_S)
    assert "shard 1 has" in str(channel.explain())


def test_leases_are_named(backend):
    channel = Channel.create(backend.name())
    channel.put("an item")
    with channel.lease(timeout_s=DEADLINE_S):
        report = channel.explain()
        assert [each.operation for each in report.queues[0].held] == ["lease of 1 item"]
        assert "1 on lease" in str(report)
        assert report.held_bytes > 0


def test_producers_and_ends_are_told(backend):
    channel = Channel.create(backend.name(), producers=2)
    with channel.producer():
        assert "2" in channel.explain().producers
    channel.put("left", queue_name="q")
    channel.end("q")
    report = channel.explain()
    assert report.queues[0].ended
    assert "ended" in str(report)


def test_it_is_plain_data_too(backend):
    channel = Channel.create(backend.name())
    channel.put("an item", queue_name=("step", 7))
    data = json.loads(json.dumps(channel.explain().to_dict()))
    assert data["name"] == channel.name
    assert data["queues"][0]["depth"]["name"] == ["step", 7]
    assert data["peers"][0]["transport"]


def test_the_string_of_a_channel_that_is_deleted_says_so(backend):
    channel = Channel.create(backend.name())
    channel.put("an item")
    channel.delete()
    assert str(channel) == f"channel '{channel.name}': the channel was deleted"
