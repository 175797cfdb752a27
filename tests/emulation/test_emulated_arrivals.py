"""What arrives over emulated links: messages, items and weights between members of a job."""

import time
from contextlib import ExitStack

import numpy as np
import pytest

from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime
from rlinf_scheduler.channel.held import HeldAt
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.shm.sent_payload import Descriptor
from rlinf_scheduler.emulation.arrivals import carried_bytes
from rlinf_scheduler.emulation.links import Links
from rlinf_scheduler.errors import ChannelTimeout
from rlinf_scheduler.mailbox import open_mailbox
from rlinf_scheduler.observe.timekeeping import LINK, TIMES
from rlinf_scheduler.session import set_current
from rlinf_scheduler.weights import open_weights
from waits import seen, wait_until

DEADLINE_S = 60.0
DELAY_S = 0.15
# 8 Mbit/s: a megabyte a second.
RATE = 1_000_000


def emulated(*, mbps=None, delay_s=DELAY_S):
    groups = [] if mbps is None else [{"members": ["rollout"], "bandwidth_mbps": mbps}]
    pairs = [{"src": "rollout", "dst": "actor", "delay_ms": 1000 * delay_s}]
    return {"enabled": True, "symmetric": False, "crossdc_pairs": pairs, "bandwidth_groups": groups}


class Members:
    """A driver, and members of its job, all in this process, each with a messenger of its own."""

    def __init__(self, section, *, arena_limit_bytes=None):
        self._stack = ExitStack()
        self._options = {"arena_limit_bytes": arena_limit_bytes}
        self.driver = self._stack.enter_context(LocalRuntime(net_emulation=section, **self._options))

    def join(self, name):
        member = self._stack.enter_context(LocalRuntime(self.driver.address, own_name=name, **self._options))
        member.directory.register(name, member.messenger.endpoint)
        member.service(open_mailbox)
        set_current(self.driver)
        return member

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        set_current(self.driver)
        return self._stack.__exit__(*raised)


def send(source, target, item):
    return source.service(open_mailbox).send(item, target.name, timeout_s=DEADLINE_S)


def recv(target, source):
    return target.service(open_mailbox).recv(source.name, timeout_s=DEADLINE_S)


@pytest.mark.parametrize("arena_limit_bytes", [None, 0], ids=["shared memory", "sockets"])
@pytest.mark.parametrize("size", [10, 300_000])
def test_a_message_takes_the_delay_and_its_bytes_at_the_bandwidth(arena_limit_bytes, size):
    with Members(emulated(mbps=8), arena_limit_bytes=arena_limit_bytes) as members:
        rollout, actor = members.join("rollout:0"), members.join("actor:0")
        began = time.monotonic()
        sent = send(rollout, actor, np.zeros(size, np.uint8))
        assert len(recv(actor, rollout).wait()) == size
        took_s = time.monotonic() - began
        assert took_s >= DELAY_S + size / RATE
        sent.wait()  # it is held there now, so it is confirmed


def test_the_other_direction_and_other_ranks_have_the_network_that_there_is():
    with Members(emulated(delay_s=3600)) as members:
        rollout, actor, reward = map(members.join, ("rollout:0", "actor:0", "reward:0"))
        for source, target in ((actor, rollout), (reward, actor), (rollout, reward)):
            send(source, target, "now").wait()
            assert recv(target, source).wait() == "now"


def test_messages_of_one_sender_keep_their_order_and_share_its_bandwidth():
    with Members(emulated(mbps=8, delay_s=0.01)) as members:
        rollout, actor = members.join("rollout:0"), members.join("actor:0")
        began = time.monotonic()
        sizes = [200_000, 10, 100_000, 0, 5]
        for size in sizes:
            send(rollout, actor, np.zeros(size, np.uint8))
        got = [len(recv(actor, rollout).wait()) for _ in sizes]
        assert got == sizes
        assert time.monotonic() - began >= 0.01 + sum(sizes) / RATE


def test_a_broadcast_crosses_once_for_all_that_receive_it(monkeypatch):
    booked, book = [], Links.book

    def noting(self, link, size_bytes, now, transfer=""):
        there = book(self, link, size_bytes, now, transfer)
        booked.append((transfer, there))
        return there

    monkeypatch.setattr(Links, "book", noting)
    section = emulated(mbps=8, delay_s=0.01)
    section["bandwidth_groups"].append({"members": ["actor"], "bandwidth_mbps": 8})
    with Members(section) as members:
        rollout, *actors = map(members.join, ("rollout:0", "actor:0", "actor:1", "actor:2"))
        groups = [("rollout", [0]), ("actor", [0, 1, 2])]
        began = time.monotonic()
        ends = [
            each.service(open_mailbox).broadcast(
                np.zeros(400_000, np.uint8), groups, ("rollout", 0), timeout_s=DEADLINE_S
            )
            for each in (rollout, *actors)
        ]
        assert [len(each.wait()) for each in ends] == [400_000] * 4
        assert time.monotonic() - began >= 0.41
    assert len(booked) == 3
    assert len(set(booked)) == 1
    assert booked[0][0]


def test_an_item_of_a_channel_crosses_from_who_put_it_to_who_gets_it():
    with Members(emulated(mbps=8)) as members:
        rollout, actor, other = map(members.join, ("rollout:0", "actor:0", "other:0"))
        Channel.create("items")
        set_current(rollout)
        began = time.monotonic()
        Channel.connect("items").put(np.zeros(300_000, np.uint8), timeout_s=DEADLINE_S)
        Channel.connect("items").put("to another", queue_name="other", timeout_s=DEADLINE_S)
        set_current(other)
        assert Channel.connect("items").get("other", timeout_s=DEADLINE_S) == "to another"
        set_current(actor)
        assert len(Channel.connect("items").get(timeout_s=DEADLINE_S)) == 300_000
        assert time.monotonic() - began >= DELAY_S + 0.3


def test_a_put_crosses_no_link_and_an_item_that_is_given_up_on_its_way_goes_to_another_consumer():
    with Members(emulated(delay_s=3600)) as members:
        rollout, actor, other = map(members.join, ("rollout:0", "actor:0", "other:0"))
        Channel.create("items")
        set_current(rollout)
        Channel.connect("items").put("item", timeout_s=DEADLINE_S)
        set_current(actor)
        with pytest.raises(ChannelTimeout):
            Channel.connect("items").get(timeout_s=0.2)
        set_current(other)
        assert Channel.connect("items").get(timeout_s=DEADLINE_S) == "item"


def test_an_item_of_a_durable_channel_crosses_too(tmp_path):
    with Members(emulated(mbps=8)) as members:
        rollout, actor = map(members.join, ("rollout:0", "actor:0"))
        Channel.create("kept", durable=tmp_path)
        set_current(rollout)
        began = time.monotonic()
        Channel.connect("kept").put(np.zeros(300_000, np.uint8), timeout_s=DEADLINE_S)
        set_current(actor)
        assert len(Channel.connect("kept").get(timeout_s=DEADLINE_S)) == 300_000
        assert time.monotonic() - began >= DELAY_S + 0.3


def test_a_question_and_its_answer_cross_each_on_its_own_link():
    section = emulated()
    section["crossdc_pairs"].append({"src": "actor", "dst": "rollout", "delay_ms": 1000 * DELAY_S})
    with Members(section) as members:
        rollout, actor = map(members.join, ("rollout:0", "actor:0"))
        Channel.create("questions")
        set_current(rollout)
        began = time.monotonic()
        asking = Channel.connect("questions").ask("question", timeout_s=DEADLINE_S, async_op=True)
        set_current(actor)
        request = Channel.connect("questions").next_request(timeout_s=DEADLINE_S)
        asked_s = time.monotonic() - began
        request.reply("answer")
        assert asking.wait(DEADLINE_S) == "answer"
        assert asked_s >= DELAY_S
        assert time.monotonic() - began >= 2 * DELAY_S


def test_items_of_a_batch_cross_from_those_who_put_them():
    with Members(emulated()) as members:
        rollout, reward, actor = map(members.join, ("rollout:0", "reward:0", "actor:0"))
        Channel.create("items")
        for source in (rollout, reward):
            set_current(source)
            Channel.connect("items").put("item", weight=1, timeout_s=DEADLINE_S)
        set_current(actor)
        began = time.monotonic()
        assert Channel.connect("items").get_batch(2, timeout_s=DEADLINE_S) == ["item", "item"]
        assert time.monotonic() - began >= DELAY_S


def test_weights_cross_from_their_publisher():
    with Members(emulated(mbps=8)) as members:
        rollout, actor = members.join("rollout:0"), members.join("actor:0")
        into = {"layer": np.zeros(75_000, np.float32)}
        rollout.service(open_weights).publish("policy", {"layer": np.ones(75_000, np.float32)}, 1)
        began = time.monotonic()
        assert actor.service(open_weights).fetch("policy", into, timeout_s=DEADLINE_S).wait() == 1
        assert time.monotonic() - began >= DELAY_S + 0.3
        assert into["layer"].all()


def test_what_a_link_holds_up_is_said_by_why_and_noted_in_traces():
    with Members(emulated(mbps=8, delay_s=1.5)) as members:
        rollout, actor = members.join("rollout:0"), members.join("actor:0")
        spans, before = [], TIMES.span_file
        TIMES.trace(spans.append)
        try:
            waiting = recv(actor, rollout)
            sent = send(rollout, actor, np.zeros(1 << 20, np.uint8))
            arrivals = actor.messenger.arrivals
            (note,) = seen(arrivals.on_their_way, lambda there: any(each.left_s for each in there))
            assert len(waiting.wait()) == 1 << 20
            sent.wait()
        finally:
            TIMES.trace(before)
        assert (note.source, note.kind, note.bytes_per_s) == ("rollout:0", "message", RATE)
        assert note.size_bytes >= 1 << 20
        (span,) = [each for each in spans if each.kind == LINK]
        assert span.name.startswith("the emulated link rollout:0 -> actor:0: 1 MiB")
        assert span.ended - span.began >= 1.5 + (1 << 20) / RATE
        assert not actor.messenger.arrivals.on_their_way()


def test_what_a_dead_process_had_on_its_way_does_not_arrive_and_others_go_on():
    with Members(emulated(delay_s=3600)) as members:
        actor, reward = members.join("actor:0"), members.join("reward:0")
        lost = members.join("rollout:0")
        send(lost, actor, "lost")
        wait_until(lambda: actor.messenger.arrivals.on_their_way())
        lost.messenger.close(timeout_s=0.0)
        wait_until(lambda: not actor.messenger.arrivals.on_their_way())
        send(reward, actor, "there").wait()
        assert recv(actor, reward).wait() == "there"


def test_what_follows_a_send_that_was_given_up_on_its_way_arrives():
    with Members(emulated()) as members:
        rollout, actor = members.join("rollout:0"), members.join("actor:0")
        given_up = send(rollout, actor, "given up")
        wait_until(lambda: actor.messenger.arrivals.on_their_way())
        given_up.cancel()
        send(rollout, actor, "sent").wait()
        # It may have been there before its sender was heard to give it up, as on any network.
        first = recv(actor, rollout).wait()
        assert first == "sent" or (first, recv(actor, rollout).wait()) == ("given up", "sent")


def test_without_the_section_nothing_is_held_back():
    with Members(None) as members:
        assert members.join("rollout:0").messenger.arrivals is None
    with Members({**emulated(), "enabled": False}) as members:
        assert members.join("rollout:0").messenger.arrivals is None


def test_frames_that_say_where_bytes_are_count_as_these_bytes():
    at = Descriptor("process", 1, 2, 3, 4, (1000, 24), shared=False).to_frame()
    held = HeldAt(Endpoint("id", "machine", "/path", ""), 1, 4096, "node").to_frame()
    assert carried_bytes(at) == len(at) + 1024
    assert carried_bytes(held) == len(held) + 4096
    for plain in (b"", b"plain", b"\xff\x01 only begins so", b"\xfe"):
        assert carried_bytes(plain) == len(plain)
