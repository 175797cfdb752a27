"""A call on a channel that a signal interrupts anywhere loses nothing, delivers nothing twice and blocks nobody."""

import pytest

import interruption_roles as roles
from interruptions import LIMIT_S, NUM_ROUNDS, SEED
from job_processes import Job
from rlinf_scheduler.channel import Channel
from rlinf_scheduler.durable.checkpoint_files import load_job

pytestmark = [pytest.mark.timeout(120 + NUM_ROUNDS), pytest.mark.system]


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


@pytest.mark.parametrize("consumer", [roles.interrupted_leases, roles.interrupted_batches_of_leases])
def test_an_interrupted_consumer_gives_back_what_it_has_not_acknowledged(job, interrupt, rounds, consumer):
    _, channel = job.hold(maxsize=8)
    producer = job.start(roles.put_until_closed, channel.name, 1)
    victim = job.start(consumer, channel.name, rounds, SEED, interrupt)
    got, num_signals = victim.receive(LIMIT_S)[1]
    # It lives, and keeps nothing; the channel would not end before.
    channel.close()
    left = roles.drain(channel)
    assert num_signals > rounds // 10
    assert sorted(set(got) | set(left)) == list(range(producer.result()))
    assert len(left) == len(set(left))
    assert channel.stats().num_leased == 0


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


def test_an_interrupted_maker_gives_its_slot_back_and_has_put_what_it_says(job, interrupt, rounds):
    _, channel = job.hold()
    trainer = job.start(roles.train_until_closed, channel.name)
    victim = job.start(roles.interrupted_makes, channel.name, rounds, SEED, interrupt)
    done, num_signals = victim.result(LIMIT_S)
    channel.close()
    got = trainer.result()
    assert num_signals > rounds // 10
    assert set(done) - {max(done)} <= set(got)
    assert got == sorted(set(got)), "in order, and none twice"


def test_an_interrupted_trainer_takes_everything_once_and_its_version_moves_on(job, interrupt, rounds):
    _, channel = job.hold()
    maker = job.start(roles.make_until_closed, channel.name)
    victim = job.start(roles.interrupted_steps, channel.name, rounds, SEED, interrupt)
    got, num_signals = victim.result(LIMIT_S)
    channel.end()
    made = maker.result()
    assert num_signals > rounds // 10
    assert got == list(range(len(got)))
    assert made - len(got) == channel.qsize()


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


def test_an_interrupted_save_leaves_a_whole_checkpoint_and_nothing_on_lease(job, interrupt, rounds, tmp_path):
    _, channel = job.hold()
    folder = str(tmp_path / "job")
    num_saves = min(rounds // 4, 400)  # each waits for the disk
    victim = job.start(roles.interrupted_saves, channel.name, num_saves, SEED, interrupt, folder)
    trained, num_signals = victim.result(LIMIT_S)
    assert num_signals > num_saves // 10
    assert channel.stats().num_leased == 0
    saved = load_job(folder)
    restored = Channel.create("restored", restore=saved.channels[channel.name])
    left = list(map(roles.number_of, channel.drain()))
    assert list(map(roles.number_of, restored.drain())) == left
    # What was acknowledged was trained on; of what was not, a checkpoint may say that it was.
    assert set(left) | set(trained) == set(range(num_saves))


def test_an_interrupted_consumer_of_a_local_channel_loses_nothing_and_gets_everything_once(interrupt, rounds):
    with Job() as job:
        victim = job.start(roles.interrupted_local_gets, rounds, SEED, interrupt)
        got, num_put, num_signals = victim.result(LIMIT_S)
    assert num_signals > rounds // 10
    assert got == list(range(num_put))
