"""Channels whose shards or producers are the ranks of a group that is resized."""

import pytest

from rlinf_scheduler.channel import Channel
from rlinf_scheduler.errors import ChannelArgumentError, ChannelClosed, ChannelExists
from rlinf_scheduler.session import current_session
from rlinf_scheduler.session.membership import GroupMembers, GroupMembership
from waits import wait_until

DEADLINE_S = 60.0
TWO = GroupMembers("actor", (0, 1), launched_ns=7)
ONE = GroupMembers("actor", (0,), 1, launched_ns=7)
THREE = GroupMembers("actor", (0, 1, 2), 1, launched_ns=7)


def resize(members):
    current_session().members.tell(members).result(DEADLINE_S)


def filled(backend, num_items, **options):
    channel = backend.create(**options)
    for number in range(num_items):
        channel.put(number)
    return channel


def iterate(channel, rank, members, batch_items=4):
    return list(channel.shard(rank, members, batch_items=batch_items))


def test_a_step_is_for_the_ranks_that_there_are_when_it_is_cut(in_process):
    channel = filled(in_process, 9)
    shards = [channel.shard(rank, TWO, batch_items=4) for rank in range(2)]
    assert shards[0].next_batch(DEADLINE_S) == [0, 2]
    resize(THREE)
    shards.append(channel.shard(2, THREE, batch_items=4))
    assert shards[1].next_batch(DEADLINE_S) == [1, 3]
    batches = [shard.next_batch(DEADLINE_S) for shard in shards]
    assert ([batch.step for batch in batches], batches) == ([1, 1, 1], [[6], [4, 7], [5]])


def test_the_iteration_of_a_rank_that_leaves_ends_while_it_waits(in_process):
    channel = filled(in_process, 4)
    both = [in_process.run(iterate, channel, rank, TWO) for rank in range(2)]
    wait_until(lambda: channel.stats().num_delivered == 4)
    resize(ONE)
    assert both[1].result(DEADLINE_S) == [[1, 3]]
    for number in range(4, 8):
        channel.put(number)
    channel.end()
    assert both[0].result(DEADLINE_S) == [[0, 2], [4, 5, 6, 7]]


def take_one(channel, rank, members):
    return list(channel.shard(rank, members, batch_items=4).next_batch(DEADLINE_S))


def test_what_a_rank_took_last_and_left_with_is_given_to_others_when_its_process_is_gone(sockets):
    channel = filled(sockets, 8)
    shard = channel.shard(0, TWO, batch_items=4)
    assert shard.next_batch(DEADLINE_S) == [0, 2]
    # Its process ends with that; nobody has said that it is done with.
    assert sockets.run(take_one, channel, 1, TWO).result(DEADLINE_S) == [1, 3]
    resize(ONE)
    channel.end()
    assert sorted(item for batch in shard for item in batch) == [1, 3, 4, 5, 6, 7]


def test_what_a_rank_acknowledged_before_it_left_is_given_to_nobody(in_process):
    channel = filled(in_process, 8)
    shards = [channel.shard(rank, TWO, batch_items=4) for rank in range(2)]
    for shard in shards:
        with shard.lease(DEADLINE_S):
            pass
    resize(ONE)
    channel.end()
    assert list(shards[0]) == [[4, 5, 6, 7]]


def test_who_has_left_is_told_so_and_what_makes_no_sense_is_refused(in_process):
    channel = filled(in_process, 4)
    resize(ONE)
    with pytest.raises(
        ChannelClosed, match="queue 'default': shard 1 has left, and had all that was cut for it"
    ):
        channel.shard(1, TWO, batch_items=4).next_batch(DEADLINE_S)
    for index, members, problem in ((2, TWO, r"no shard 2 of \[0, 1\]"), ("1", TWO, "a rank's number")):
        with pytest.raises(ChannelArgumentError, match=problem):
            channel.shard(index, members)


def test_processes_hear_of_it_and_tell_the_channel(sockets):
    channel = sockets.create()
    both = [sockets.run(iterate, channel, rank, TWO) for rank in range(2)]
    for number in range(4):
        channel.put(number)
    wait_until(lambda: channel.stats().num_delivered == 4)
    resize(ONE)
    assert both[1].result(DEADLINE_S) == [[1, 3]]
    channel.end()
    assert both[0].result(DEADLINE_S) == [[0, 2]]


# -- producers --------------------------------------------------------------------------------------


def be(rank, members):
    current_session().provide(GroupMembership, GroupMembership(members, members.launched_ns, rank))


def produce(channel, rank, members, items):
    be(rank, members)
    with channel.producer():
        for item in items:
            channel.put(item)


def test_a_channel_ends_when_all_ranks_are_done_that_there_are_then(in_process):
    channel = in_process.create(producers="actor")
    produce(channel, 0, TWO, [1])
    produce(channel, 1, THREE, [2])
    channel.put(3)
    assert channel.drain() == [1, 2, 3]
    assert "2 of 3 producers are done" in str(channel.stats())
    resize(GroupMembers("actor", (0, 1), 2, launched_ns=7))
    assert list(channel) == []


def test_a_channel_that_nobody_has_joined_does_not_count_its_producers(in_process):
    channel = in_process.create(producers="actor")
    assert "no rank of 'actor' has begun yet" in str(channel.stats())
    assert "0 of 0" not in str(channel.stats())


def test_a_rank_that_has_left_in_its_block_is_waited_for(in_process):
    channel = in_process.create(producers="actor")
    be(1, TWO)
    with channel.producer():
        resize(ONE)
        produce(channel, 0, ONE, [1])
        channel.put(2)
    assert list(channel) == [1, 2]


def test_ranks_that_were_done_before_all_of_the_group_was_launched_anew_are_waited_for(in_process):
    channel = in_process.create(producers="actor")
    produce(channel, 0, TWO, [1])
    again = GroupMembers("actor", (0, 1), launched_ns=8)
    produce(channel, 1, again, [2])
    produce(channel, 0, again, [3])
    assert list(channel) == [1, 2, 3]


def test_they_count_as_done_where_they_do_not_begin_again_in_time(in_process):
    channel = in_process.create(producers="actor", successor_s=0.1)
    produce(channel, 0, TWO, [1])
    produce(channel, 1, GroupMembers("actor", (0, 1), launched_ns=8), [2])
    assert list(channel) == [1, 2]


class Group:
    members = TWO


def test_a_group_says_its_name_and_others_are_no_producers(in_process):
    channel = in_process.create(producers=Group())
    problem = "its producers are the ranks of 'actor', and '.*' is none of them"
    with pytest.raises(ChannelArgumentError, match=problem), channel.producer():
        pass
    be(0, TWO)
    with channel.producer(), pytest.raises(ChannelArgumentError, match="no place"), channel.producer():
        pass


@pytest.mark.parametrize("producers", ["", "actor:0", 0, 1.5, [TWO]])
def test_producers_that_make_no_sense_are_refused(in_process, producers):
    with pytest.raises(ChannelArgumentError, match="producers"):
        Channel.create(in_process.name(), producers=producers)


def test_it_is_another_channel_with_the_ranks_of_another_group(in_process):
    name = in_process.name()
    Channel.create(name, producers="actor")
    with pytest.raises(ChannelExists, match="producer_group='actor' and not 'critic'"):
        Channel.create(name, producers="critic", exist_ok=True)
