"""A call on a channel that a signal interrupts anywhere loses nothing, delivers nothing twice and blocks nobody."""

import pytest

import interruption_roles as roles
from interruptions import LIMIT_S, NUM_ROUNDS, SEED
from job_processes import Job

pytestmark = pytest.mark.timeout(60 + NUM_ROUNDS)


@pytest.mark.parametrize(
    "consumer", [roles.interrupted_gets, roles.interrupted_batches, roles.interrupted_waits_for_gets]
)
def test_an_interrupted_consumer_loses_nothing_and_gets_everything_once_and_in_order(
    job, interrupt, rounds, consumer
):
    _, channel = job.hold(maxsize=4)
    producer = job.start(roles.put_until_closed, channel.name, 1)
    victim = job.start(consumer, channel.name, rounds, SEED, interrupt)
    got, num_signals = victim.result(LIMIT_S)
    channel.close()
    left = roles.drain(channel)
    assert num_signals > rounds // 10
    assert got + left == list(range(producer.result()))


@pytest.mark.parametrize("producer", [roles.interrupted_puts, roles.interrupted_waits_for_puts])
def test_what_an_interrupted_producer_put_is_there_once_and_in_order(job, interrupt, rounds, producer):
    _, channel = job.hold(maxsize=4)
    consumer = job.start(roles.take_until_closed, channel.name)
    victim = job.start(producer, channel.name, rounds, SEED, interrupt)
    done, num_signals = victim.result(LIMIT_S)
    channel.close()
    got = consumer.result()
    assert num_signals > rounds // 10
    assert sorted(set(done) - set(got)) == []
    assert got == sorted(set(got)), "in order, and none twice"
    assert set(got) <= set(range(rounds))


def test_an_interrupted_thread_loses_nothing_of_another_ones(job, interrupt, rounds):
    _, channel = job.hold()
    victim = job.start(roles.interrupted_beside_another_thread, channel.name, rounds, SEED, interrupt)
    num_put, num_signals = victim.result(LIMIT_S)
    channel.close()
    assert num_signals > rounds // 10
    assert roles.drain(channel) == list(range(num_put))


def test_a_signal_handler_may_use_the_channel_that_it_interrupts(job, interrupt, rounds):
    _, channel = job.hold()
    victim = job.start(
        roles.calls_beside_a_handler_that_uses_the_channel, channel.name, rounds // 2, SEED, interrupt
    )
    num_signals, num_ended = victim.result(LIMIT_S)
    assert num_signals == num_ended > rounds // 20


def test_an_interrupted_put_writes_into_no_other_item():
    with Job() as job:
        _, channel = job.hold(maxsize=2)
        consumer = job.start(roles.take_until_closed, channel.name)
        rounds = NUM_ROUNDS // 3
        victim = job.start(roles.interrupted_large_puts, channel.name, rounds, SEED)
        done, num_signals = victim.result(LIMIT_S)
        channel.close()
        got = consumer.result()
        assert num_signals > rounds // 10
        assert set(done) <= set(got)
        assert got == sorted(set(got)), "in order, and none twice"
