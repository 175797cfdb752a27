"""What a message says beside its frames has a size: what is too large is refused, and disturbs nothing else."""

import threading

import pytest

from rlinf.testing.local import LocalRuntime
from rlinf_scheduler.channel import Channel
from rlinf_scheduler.comm import framing
from rlinf_scheduler.errors import ChannelArgumentError

DEADLINE_S = 60.0
LONG = 60_000
# So many long names are more than any message says.
NUM_LONG = framing.MAX_CONTROL_BYTES // LONG + 100


def begin_together(runtime, begin):
    """What `begin` begins: the I/O thread looks at all of it at once."""
    held = threading.Event()
    runtime.messenger.submit(lambda: held.wait(DEADLINE_S))
    try:
        return begin()
    finally:
        held.set()


@pytest.fixture(params=["plain", "durable"])
def create(request, tmp_path):
    """Makes a channel."""
    options = {"durable": tmp_path / "journal", "survives": "process"} if request.param == "durable" else {}

    with LocalRuntime() as runtime:
        yield lambda: (runtime, Channel.create("items", **options))


def test_puts_that_say_more_than_a_message_holds_arrive_in_order(create):
    runtime, channel = create()
    channel.qsize()
    numbers = range(NUM_LONG)
    puts = begin_together(
        runtime, lambda: [channel.put(n, async_op=True, group=f"{n:0{LONG}d}") for n in numbers]
    )
    for put in puts:
        put.wait(DEADLINE_S)
    more = range(NUM_LONG, NUM_LONG + 10)
    for number in more:  # the last ones by a shortcut
        channel.put(number, timeout_s=DEADLINE_S)
    assert [channel.get(timeout_s=DEADLINE_S) for _ in (*numbers, *more)] == [*numbers, *more]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("queue_name", lambda: "q" * 70_000),
        ("queue_name", lambda: ("q" * 40_000, "q" * 40_000)),
        ("group", lambda: "g" * 70_000),
    ],
)
@pytest.mark.parametrize("async_op", [False, True])
def test_a_put_that_says_too_much_is_refused_at_once(option, value, async_op):
    with LocalRuntime():
        channel = Channel.create("items")
        with pytest.raises(ChannelArgumentError):
            channel.put("an item", async_op=async_op, **{option: value()})
        channel.put("another", timeout_s=DEADLINE_S)
        assert channel.get(timeout_s=DEADLINE_S) == "another"
        assert channel.qsize() == 0


def put_versions(channel, num_items):
    """Put items of which each delivery is to say of which versions they are."""
    puts = [channel.put(number, version=(1 << 40) + number, async_op=True) for number in range(num_items)]
    for put in puts:
        put.wait(DEADLINE_S)


def test_answers_that_say_more_than_a_message_holds_all_arrive(create, monkeypatch):
    runtime, channel = create()
    put_versions(channel, 2000)
    monkeypatch.setattr(framing, "MAX_CONTROL_BYTES", 10_000)
    gets = begin_together(
        runtime, lambda: [channel.get_batch(max_items=100, async_op=True) for _ in range(20)]
    )
    batches = [get.wait(DEADLINE_S) for get in gets]
    assert [item for batch in batches for item in batch] == [*range(2000)]


def test_a_batch_of_which_more_is_to_be_said_than_a_message_holds_goes_back(create, monkeypatch):
    _, channel = create()
    put_versions(channel, 2000)
    monkeypatch.setattr(framing, "MAX_CONTROL_BYTES", 10_000)
    with pytest.raises(ChannelArgumentError, match="2000 items are too many at once"):
        channel.get_batch(max_items=2000, min_items=2000, timeout_s=DEADLINE_S)
    assert channel.get_batch(max_items=100, timeout_s=DEADLINE_S) == [*range(100)]
    assert channel.qsize() == 1900


@pytest.mark.parametrize("question", [Channel.stats, Channel.explain])
def test_a_report_of_many_long_names_arrives_whole(create, question):
    _, channel = create()
    puts = [
        channel.put("an item", queue_name=f"{number:0{LONG}d}", async_op=True) for number in range(NUM_LONG)
    ]
    for put in puts:
        put.wait(DEADLINE_S)
    assert len(question(channel).queues) == NUM_LONG
    channel.put("another", timeout_s=DEADLINE_S)
    assert channel.get(timeout_s=DEADLINE_S) == "another"
