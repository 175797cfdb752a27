"""A send, recv, broadcast, fetch or publication that a signal interrupts anywhere breaks nothing for anybody."""

import pytest

import interruption_exchanges as roles
from interruptions import LIMIT_S, NUM_ROUNDS, SEED
from job_processes import THERE, Job
from rlinf_scheduler.observe.status_service import StatusService

pytestmark = [pytest.mark.timeout(120 + NUM_ROUNDS), pytest.mark.system]

GROUPS = [("source", [0]), ("members", [0, 1, 2])]
SOURCE = ("source", 0)


def check_what_came(got, done):
    """Everything whose call came to its end is there; nothing twice, and all in order."""
    assert sorted(set(done) - set(got)) == []
    assert got == sorted(set(got))


def test_what_an_interrupted_sender_sent_arrives_once_and_in_order(job, interrupt, rounds):
    receiver = job.start(roles.receive_until_the_end, "sender:0", where=THERE, name="receiver:0")
    victim = job.start(roles.interrupted_sends, "receiver:0", rounds, SEED, interrupt, name="sender:0")
    done, num_signals = victim.result(LIMIT_S)
    assert num_signals > rounds // 10
    check_what_came(receiver.result(), done)


@pytest.mark.parametrize(
    ("receive", "send"),
    [
        (roles.interrupted_recvs, roles.send_numbers),
        (roles.interrupted_waits_for_recvs, roles.send_numbers_asked_for),
    ],
)
def test_an_interrupted_receiver_gets_everything_once_and_in_order(job, interrupt, rounds, receive, send):
    job.start(send, "receiver:0", 2 * rounds, where=THERE, name="sender:0")
    victim = job.start(receive, "sender:0", rounds, SEED, interrupt, name="receiver:0")
    got, num_signals = victim.result(LIMIT_S)
    assert num_signals > rounds // 10
    assert got == list(range(2 * rounds))


def test_who_receives_from_several_at_once_and_is_interrupted_gets_all_parts_or_none(job, interrupt, rounds):
    senders = ["sender:0", "sender:1", "sender:2"]
    for sender in senders:
        job.start(roles.send_numbers, "receiver:0", 2 * rounds, where=THERE, name=sender)
    victim = job.start(
        roles.interrupted_recvs_of_several, senders, rounds, SEED, interrupt, name="receiver:0"
    )
    got, num_signals = victim.result(LIMIT_S)
    assert num_signals > rounds // 10
    assert got == [(number,) * len(senders) for number in range(2 * rounds)]


def test_what_an_interrupted_source_broadcast_reaches_all_members_once_and_in_order(job, interrupt, rounds):
    members = [
        job.start(roles.receive_broadcasts, GROUPS, SOURCE, where=THERE, name=f"members:{rank}")
        for rank in range(3)
    ]
    victim = job.start(roles.interrupted_broadcasts, GROUPS, SOURCE, rounds, SEED, interrupt, name="source:0")
    done, num_signals = victim.result(LIMIT_S)
    assert num_signals > rounds // 10
    first, second, third = (member.result() for member in members)
    assert first == second == third
    check_what_came(first, done)


def test_an_interrupted_member_gets_every_broadcast_once_and_in_order(job, interrupt, rounds):
    others = [
        job.start(roles.receive_broadcasts, GROUPS, SOURCE, where=THERE, name=f"members:{rank}")
        for rank in (1, 2)
    ]
    victim = job.start(
        roles.interrupted_receipts_of_broadcasts,
        GROUPS,
        SOURCE,
        rounds,
        SEED,
        interrupt,
        where=THERE,
        name="members:0",
    )
    job.start(roles.send_broadcasts, GROUPS, SOURCE, 2 * rounds, name="source:0")
    got, num_signals = victim.result(LIMIT_S)
    assert num_signals > rounds // 10
    assert got == list(range(2 * rounds))
    assert [other.result() for other in others] == [got, got]


def test_an_interrupted_reader_never_takes_half_a_version_for_a_whole_one(job, interrupt, rounds):
    publisher = job.start(roles.publish_continually, "policy", where=THERE)
    victim = job.start(roles.interrupted_fetches, "policy", rounds, SEED, interrupt)
    broken, num_signals = victim.result(LIMIT_S)
    publisher.pipe.send("enough")
    last = publisher.result()
    assert num_signals > rounds // 10
    assert broken == []
    assert roles.fetch_continually(None, job.driver, "policy", last) == [last]


def test_an_interrupted_publisher_shows_whole_versions_only_and_goes_on(job, interrupt, rounds):
    last = 3 * rounds // 2  # a publication has more steps than any other call
    victim = job.start(roles.interrupted_publications, "policy", last, SEED, interrupt)
    readers = [job.start(roles.fetch_continually, "policy", last, where=THERE) for _ in range(2)]
    assert victim.result(LIMIT_S) > rounds // 10
    for reader in readers:
        seen = reader.result()
        assert [what for what in seen if not isinstance(what, int)] == []
        assert seen == sorted(seen)


def test_a_publisher_that_is_interrupted_the_first_time_may_publish_under_that_name(job, interrupt, rounds):
    victim = job.start(roles.interrupted_first_publications, "policy", rounds, SEED, interrupt)
    assert victim.result(LIMIT_S) > rounds // 10


def test_a_signal_handler_may_use_a_channel_in_the_middle_of_any_exchange(job, interrupt, rounds):
    _, channel = job.hold()
    num_exchanges = rounds // 3
    job.start(roles.send_back, "victim:0", num_exchanges, where=THERE, name="peer:0")
    victim = job.start(
        roles.exchanges_beside_a_handler_that_uses_a_channel,
        channel.name,
        "peer:0",
        num_exchanges,
        SEED,
        interrupt,
        name="victim:0",
    )
    num_signals, num_ended = victim.result(LIMIT_S)
    assert num_signals == num_ended > num_exchanges // 10


def test_a_look_at_the_job_that_is_interrupted_keeps_no_later_one_up(interrupt, rounds):
    with Job() as job:
        job.driver.service(StatusService)
        # Each asks every process.
        victim = job.start(roles.interrupted_looks, rounds // 4, SEED, interrupt, name="victim:0")
        status, num_signals = victim.result(LIMIT_S)
    assert num_signals > rounds // 40
    assert [rank.address for rank in status.ranks] == ["driver", "victim:0"]
