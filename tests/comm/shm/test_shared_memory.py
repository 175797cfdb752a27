"""Shared memory between processes: what becomes of it when they die, stop, run out of it, or cannot have it."""

import gc
import os
import signal
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest

import arena_peers as peers
from rlinf_scheduler.comm import DirectoryClient, DirectoryServer, Messenger
from rlinf_scheduler.mailbox import Mailbox
from waits import wait_until

DEADLINE_S = 60.0
MIB = 1 << 20


@pytest.fixture
def directory(secret):
    messenger = Messenger(secret, name="directory", arena_limit_bytes=0)
    DirectoryServer(messenger)
    yield messenger.endpoint
    messenger.close()


@pytest.fixture
def start(secret, directory):
    """Starts processes that have mailboxes."""
    started = []

    def start(name, limit_bytes=16 * MIB, prepare=None):
        options = {"arena_limit_bytes": limit_bytes}
        started.append(peers.Peer(prepare, secret, directory, name, options))
        return started[-1]

    yield start
    for peer in started:
        peer.close()


@pytest.fixture
def two(start):
    """A producer and a consumer that know of each other."""
    producer, consumer = start("env:0"), start("rollout:0")
    assert producer.call(peers.make_ready, consumer.endpoint)
    return producer, consumer


def send(producer, consumer, value, num_items=1):
    """Send arrays; they have arrived, and are kept there, when this returns."""
    producer.call(peers.send, consumer.name, value, num_items)
    assert consumer.call(peers.receive, producer.name, num_items) == list(range(value, value + num_items))


def arenas_anywhere(inodes):
    """Which of these arenas some process has mapped or open."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        found |= peers.inodes_of(pid) & inodes
    return found


# -- deaths --------------------------------------------------------------------------------------


def test_blocks_that_a_killed_consumer_held_are_used_again(two):
    producer, consumer = two
    send(producer, consumer, 1, num_items=5)
    assert consumer.call(peers.num_in_shared_memory) == 5
    assert not producer.call(peers.all_free)
    consumer.kill()
    peers.eventually(lambda: producer.call(peers.all_free))


def test_what_a_consumer_holds_of_a_killed_producer_stays_whole_and_ends_with_it(two):
    producer, consumer = two
    send(producer, consumer, 1, num_items=5)
    producer.kill()
    assert consumer.call(peers.held_contents) == [1, 2, 3, 4, 5]
    consumer.call(peers.overwrite, 9)
    assert consumer.call(peers.held_contents) == [9] * 5
    own = 1  # its own arena
    assert peers.num_maps(consumer.pid) == own + 1
    consumer.call(peers.drop)
    peers.eventually(lambda: peers.num_maps(consumer.pid) == own)
    peers.eventually(lambda: peers.num_open(consumer.pid) == own)


def test_an_idle_map_of_a_killed_producer_is_given_up(two):
    producer, consumer = two
    send(producer, consumer, 1)
    consumer.call(peers.drop)
    assert peers.num_maps(consumer.pid) == 2
    producer.kill()
    peers.eventually(lambda: peers.num_maps(consumer.pid) == peers.num_open(consumer.pid) == 1)


def test_nothing_is_left_in_memory_when_everybody_is_killed(start):
    everybody = [start(f"rank:{number}", limit_bytes=512 * MIB) for number in range(3)]
    first, second, third = everybody
    for sender, receiver in ((first, second), (second, third), (third, first)):
        assert sender.call(peers.make_ready, receiver.endpoint)
        send(sender, receiver, 1, num_items=100)
    assert sum(peer.call(peers.allocated_bytes) for peer in everybody) > 200 * MIB
    inodes = set().union(*(peers.inodes_of(peer.pid) for peer in everybody))
    assert len(inodes) == 3
    assert arenas_anywhere(inodes) == inodes
    for peer in everybody:
        os.kill(peer.pid, signal.SIGKILL)
    for peer in everybody:
        peer.process.join(DEADLINE_S)
    # Memory that nobody has mapped or open is the system's again.
    assert arenas_anywhere(inodes) == set()


def test_a_stopped_consumer_keeps_what_it_holds_and_holds_up_nobody_else(start):
    producer, stopped, other = start("env:0", limit_bytes=4 * MIB), start("rollout:0"), start("rollout:1")
    for consumer in (stopped, other):
        assert producer.call(peers.make_ready, consumer.endpoint)
    send(producer, stopped, 1, num_items=3)
    stopped.stop()
    # There is no room left; the rest goes through sockets.
    send(producer, other, 50, num_items=10)
    assert producer.call(peers.touched_bytes) < 4 * MIB + 8192
    stopped.go_on()
    assert stopped.call(peers.held_contents) == [1, 2, 3]
    assert other.call(peers.held_contents) == list(range(50, 60))


# -- limits --------------------------------------------------------------------------------------


def test_a_full_arena_makes_plain_copies_and_stays_within_its_limit(start):
    producer, consumer = start("env:0", limit_bytes=4 * MIB), start("rollout:0")
    assert producer.call(peers.make_ready, consumer.endpoint)
    send(producer, consumer, 1, num_items=12)
    assert consumer.call(peers.num_in_shared_memory) == 3  # each takes a page more than a MiB
    assert producer.call(peers.touched_bytes) <= 4 * MIB + 4096
    consumer.call(peers.drop, 6)
    # The consumer's I/O thread releases what was dropped, a moment later.
    peers.eventually(lambda: producer.call(peers.all_free))
    send(producer, consumer, 13, num_items=3)
    assert consumer.call(peers.num_in_shared_memory) == 3
    assert consumer.call(peers.held_contents) == list(range(7, 16))


def test_an_object_larger_than_the_limit_travels_as_bytes(start):
    producer, consumer = start("env:0", limit_bytes=MIB), start("rollout:0")
    assert producer.call(peers.make_ready, consumer.endpoint)
    send(producer, consumer, 7)
    assert consumer.call(peers.num_in_shared_memory) == 0
    assert producer.call(peers.touched_bytes) == 4096
    assert producer.call(peers.logged) == []


def test_who_waits_for_room_goes_on_when_the_consumer_drops_something(start):
    producer, consumer = start("env:0", limit_bytes=3 * MIB), start("rollout:0")
    assert producer.call(peers.make_ready, consumer.endpoint)
    send(producer, consumer, 1, num_items=2)
    producer.begin(peers.send_when_there_is_room, consumer.name, 9)
    peers.eventually(lambda: peers.wants_room(producer.pid))
    consumer.call(peers.drop, 1)
    producer.finish()
    assert consumer.call(peers.receive, producer.name) == [9]
    assert consumer.call(peers.num_in_shared_memory) == 2
    assert not peers.wants_room(producer.pid)


def test_who_waits_for_room_goes_on_when_the_consumer_is_killed(start):
    producer, killed, other = start("env:0", limit_bytes=3 * MIB), start("rollout:0"), start("rollout:1")
    for consumer in (killed, other):
        assert producer.call(peers.make_ready, consumer.endpoint)
    send(producer, killed, 1, num_items=2)
    producer.begin(peers.send_when_there_is_room, other.name, 9)
    peers.eventually(lambda: peers.wants_room(producer.pid))
    killed.kill()
    producer.finish()
    assert other.call(peers.receive, producer.name) == [9]


# -- without shared memory -----------------------------------------------------------------------


def the_reason(warnings):
    assert len(warnings) == 1, warnings
    assert warnings[0].startswith("no shared memory: ")
    assert warnings[0].endswith("large objects are copied through sockets instead")
    return warnings[0]


def check_sockets_only(producer, consumer):
    producer.call(peers.make_ready, consumer.endpoint)
    consumer.call(peers.make_ready, producer.endpoint)
    send(producer, consumer, 1, num_items=3)
    send(consumer, producer, 1, num_items=3)
    assert consumer.call(peers.num_in_shared_memory) == 0
    assert peers.num_maps(consumer.pid) <= 1


def test_a_limit_of_zero_switches_shared_memory_off_silently(start):
    producer, consumer = start("env:0", limit_bytes=0), start("rollout:0")
    check_sockets_only(producer, consumer)
    assert producer.call(peers.logged) == consumer.call(peers.logged) == []


def test_without_memfd_everything_goes_through_sockets_and_the_log_says_why_once(start):
    producer, consumer = start("env:0", prepare=peers.without_memfd), start("rollout:0")
    check_sockets_only(producer, consumer)
    assert "no memfd here" in the_reason(producer.call(peers.logged))
    assert consumer.call(peers.logged) == []


def test_where_the_folder_for_temporary_files_is_full_bytes_travel_and_the_log_says_why_once(
    start, small_disk
):
    small_disk.fill()
    prepare = partial(peers.with_temporary_files_in, small_disk.path)
    producer, consumer = start("env:0", prepare=prepare), start("rollout:0", prepare=prepare)
    check_sockets_only(producer, consumer)
    for each in (producer, consumer):
        reason = the_reason(each.call(peers.logged))
        assert "No space left on device" in reason
        assert f"{small_disk.path}/" in reason


def test_who_has_begun_before_the_folder_for_temporary_files_is_full_goes_on_as_before(start, small_disk):
    prepare = partial(peers.with_temporary_files_in, small_disk.path)
    producer, consumer = start("env:0", prepare=prepare), start("rollout:0", prepare=prepare)
    small_disk.fill()
    assert producer.call(peers.make_ready, consumer.endpoint)
    send(producer, consumer, 1, num_items=3)
    assert consumer.call(peers.num_in_shared_memory) == 3


def test_a_process_without_proc_sends_and_gets_bytes_and_says_why_once(start):
    producer, consumer = start("env:0"), start("rollout:0", prepare=peers.without_proc)
    check_sockets_only(producer, consumer)
    assert "may not look into /proc" in the_reason(consumer.call(peers.logged))
    assert "'rollout:0' cannot open that of this process" in the_reason(producer.call(peers.logged))


def test_a_process_that_may_not_look_at_others_still_lets_them_look_at_it(start):
    blind, other = start("env:0", prepare=peers.without_proc_of_others), start("rollout:0")
    assert blind.call(peers.make_ready, other.endpoint)
    assert not other.call(peers.make_ready, blind.endpoint)
    send(blind, other, 1, num_items=3)
    send(other, blind, 1, num_items=3)
    assert other.call(peers.num_in_shared_memory) == 3
    assert blind.call(peers.num_in_shared_memory) == 0
    assert "that of 'rollout:0' cannot be opened here" in the_reason(blind.call(peers.logged))
    assert "'env:0' cannot open" in the_reason(other.call(peers.logged))


def test_a_consumer_that_cannot_open_any_more_gets_bytes(two):
    producer, consumer = two
    consumer.call(peers.run_out_of_descriptors)
    send(producer, consumer, 1, num_items=4)
    assert consumer.call(peers.num_in_shared_memory) == 0
    assert "too many open files" in the_reason(producer.call(peers.logged))
    peers.eventually(lambda: producer.call(peers.all_free))


def test_a_consumer_that_can_open_again_gets_descriptors_again(two):
    producer, consumer = two
    consumer.call(peers.run_out_of_descriptors)
    send(producer, consumer, 1, num_items=1)
    assert consumer.call(peers.num_in_shared_memory) == 0
    assert not producer.call(peers.reads, consumer.endpoint.process_id)
    consumer.call(peers.get_descriptors)
    peers.eventually(lambda: producer.call(peers.reads, consumer.endpoint.process_id))
    send(producer, consumer, 2, num_items=3)
    assert consumer.call(peers.num_in_shared_memory) == 3


# -- leaving -------------------------------------------------------------------------------------


def test_arrays_outlive_the_messengers_of_both_sides(two):
    producer, consumer = two
    send(producer, consumer, 1, num_items=3)
    consumer.call(peers.close)
    producer.call(peers.close)
    assert consumer.call(peers.held_contents) == [1, 2, 3]
    consumer.call(peers.overwrite, 9)
    consumer.call(peers.drop)
    assert peers.num_maps(consumer.pid) == peers.num_open(consumer.pid) == 0


def test_a_closed_messenger_leaves_no_descriptor_and_no_map_behind(secret):
    def use():
        messengers = [Messenger(secret, name=f"rank:{number}", arena_limit_bytes=MIB) for number in range(2)]
        DirectoryServer(messengers[0])
        names = [DirectoryClient(messenger, messengers[0].endpoint) for messenger in messengers]
        boxes = [Mailbox(messengers[number], names[number], f"rank:{number}") for number in range(2)]
        for number in range(2):
            names[number].register(f"rank:{number}", messengers[number].endpoint)
        for _ in range(2):
            sent = boxes[0].send(np.ones(10_000), "rank:1", timeout_s=DEADLINE_S)
            assert boxes[1].recv("rank:0", timeout_s=DEADLINE_S).wait().sum() == 10_000
            sent.wait()
        for messenger in reversed(messengers):
            messenger.close()

    use()  # what is loaded on first use stays
    gc.collect()
    descriptors, maps = len(os.listdir("/proc/self/fd")), peers.num_maps("self")
    use()
    gc.collect()
    # Others in this process may open some for a moment, and what earlier tests have left may go.
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
    wait_until(lambda: peers.num_maps("self") <= maps)


SCRIPT = """
import numpy as np
from rlinf_scheduler.comm import ClusterSecret, DirectoryClient, DirectoryServer, Messenger
from rlinf_scheduler.mailbox import Mailbox

messenger = Messenger(ClusterSecret.generate(), name="rank:0", arena_limit_bytes=1 << 22)
DirectoryServer(messenger)
names = DirectoryClient(messenger, messenger.endpoint)
names.register("rank:0", messenger.endpoint)
mailbox = Mailbox(messenger, names, "rank:0")
held = []

class Holder:
    def __del__(self):
        self.array[0] = 1

for _ in range(3):
    sent = mailbox.send(np.ones(100_000), "rank:0", timeout_s=60)
    holder = Holder()
    holder.itself = holder
    holder.array = mailbox.recv("rank:0", timeout_s=60).wait()
    sent.wait()
    held.append(holder)
np.held = held  # outlives this module
unread = mailbox.send(np.ones(100_000), "rank:0", timeout_s=60)
"""


@pytest.mark.parametrize("end", ["", "messenger.close()", "del np.held", "messenger.close(); del np.held"])
def test_a_process_that_ends_with_arrays_alive_ends_quietly(end):
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT + end], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


# -- all at once ---------------------------------------------------------------------------------


def test_many_threads_send_at_once_and_nothing_is_torn(two):
    producer, consumer = two
    producer.begin(peers.send_from_threads, consumer.name, 4, 40)
    got = consumer.call(peers.receive_stamped, producer.name, 160)
    producer.finish()
    assert got == [(thread, number) for thread in range(4) for number in range(40)]
    peers.eventually(lambda: producer.call(peers.all_free))


def test_the_dead_are_looked_for_once_for_all_that_are_lost_in_a_moment(secret, monkeypatch):
    messenger = Messenger(secret, name="home:0", arena_limit_bytes=16 * MIB)
    looks, both = [], threading.Barrier(2)
    monkeypatch.setattr(messenger.payloads.arena, "clear_dead", lambda: looks.append(None))

    def lose_many():
        for number in range(100):
            messenger.peers._report_lost(f"{number:032x}")
        messenger.submit(lambda: both.wait(DEADLINE_S))

    try:
        messenger.submit(lose_many)
        both.wait(DEADLINE_S)
        # At once, and thrice later, since an ended process may have its slot for a while.
        assert 1 <= len(looks) <= 4
    finally:
        monkeypatch.undo()
        messenger.close()
