"""Every cell of the page's table of what combines: the way to take works there, or raises what the cell names."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime
from rlinf_scheduler import errors

PAGE = (Path(__file__).parents[2] / "docs/choose.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## What combines")[2].partition("\n## ")[0]
HEAD, _, *ROWS = (re.findall(r" (.*?) \|", line) for line in re.findall(r"^\|(.*\|)$", TABLE, re.MULTILINE))
CELLS = [(row[0], column, cell) for row in ROWS for column, cell in zip(HEAD[1:], row[1:], strict=True)]


def on_lease(lease):
    with lease as held:
        return held.item if hasattr(held, "item") else list(held.items)


TAKEN_BY = {
    "`get`, iteration": lambda channel: [channel.get(timeout_s=60), next(iter(channel))],
    "`get_batch`": lambda channel: channel.get_batch(batch_weight=2, timeout_s=60),
    "`get_group`": lambda channel: channel.get_group(2, timeout_s=60),
    "`lease`, `leases`": lambda channel: [
        on_lease(channel.lease(timeout_s=60)),
        next(iter(channel.leases())).item,
    ],
    "`shard`": lambda channel: channel.shard(0, 1, policy="balanced", batch_weight=2).next_batch(
        timeout_s=60
    ),
    "`subscribe`": lambda seen: [seen.get(timeout_s=60), seen.get(timeout_s=60)],
    "`next_request`": lambda channel: [request.item for request in channel.next_requests(2, timeout_s=60)],
}
CREATED_WITH = {"`producers=`": {"producers": 1}, "`local=True`": {"local": True}}


def put_two(channel, column, asks):
    """What the queue holds in that column: two items, which have all that ways to take may want."""
    put = channel.ask if asks else channel.put
    handles = []
    for number in range(2):
        options = {"priority": number} if column == "`priority=`" else {}
        if column == "permits" and not asks:
            options["slot"] = channel.admit(max_lag=0, timeout_s=60)
        # A question that is refused says so to who waits for its answer.
        waits = not asks or column == "permits"
        handles.append(put(number, weight=1, group="g", async_op=not waits, **options))
    return handles  # a question whose handle is dropped is taken back


def two_taken(way, column, folder):
    options = {"durable": folder / "journal"} if column == "`durable=`" else CREATED_WITH.get(column, {})
    channel = Channel.create("items", **options)
    taken_from = channel.subscribe("seen") if way == "`subscribe`" else channel
    if column == "permits":
        channel.set_version(0, batch_items=2, begins=True)
    asks = way == "`next_request`" or column == "what was asked"
    with channel.producer() if column == "`producers=`" else nullcontext():
        handles = put_two(channel, column, asks)
    taken = list(TAKEN_BY[way](taken_from))
    assert len(handles) == 2
    return taken


@pytest.mark.parametrize(
    ("way", "column", "cell"), CELLS, ids=[f"{way} {column}" for way, column, _ in CELLS]
)
def test_each_way_to_take_does_what_the_table_says(way, column, cell, tmp_path):
    with LocalRuntime():
        if cell.startswith("yes"):
            taken = two_taken(way, column, tmp_path)
            last_first = column == "`priority=`" and "ignored" not in cell
            assert taken == ([1, 0] if last_first else [0, 1])
        else:
            with pytest.raises(getattr(errors, cell.strip("`"))):
                two_taken(way, column, tmp_path)


def test_the_table_has_every_way_and_what_a_queue_may_have():
    assert [row[0] for row in ROWS] == list(TAKEN_BY)
    assert len(CELLS) == 7 * 8
