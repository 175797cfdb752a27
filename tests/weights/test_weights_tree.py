"""Weights for many machines: they copy from each other in pieces, whatever happens to those that they copy from."""

import signal
from functools import partial

import pytest

import weights_peers
from rlinf_scheduler.comm.replication import pieces, publisher, reading
from rlinf_scheduler.comm.replication.records import Kept
from weights_job import DEADLINE_S, count_replicas, hold_up_copies, wait_until
from weights_peers import numbers_in, state

# Of many pieces.
ELEMENTS = 200_000
NUM_MACHINES = 8


def large(number):
    return state(number, elements=ELEMENTS)


def published_by(weights):
    return list(weights._versions._publisher._published.values())


def held_by(weights):
    """What a reader has of objects of others: how much of how many bytes, each."""
    return [(held.filled, len(held.row)) for held in list(weights._replicas._pieces.held.values())]


def fetching(reader, into):
    return reader.fetch("policy", into, timeout_s=DEADLINE_S)


@pytest.fixture
def patient(monkeypatch):
    """Nobody is taken for slow or stopped."""
    monkeypatch.setattr(publisher, "SLOW_S", DEADLINE_S)
    monkeypatch.setattr(pieces, "PIECE_TIMEOUT_S", DEADLINE_S)


class Held:
    """A process that answers for the pieces that it has when it is told to, and counts what it is asked for."""

    def __init__(self, messenger, service, after=0):
        self.asked, self._after, self._messenger = [], after, messenger
        self._answer = messenger._services[service].handler
        self._waiting, self._goes_on = [], False
        messenger.unserve(service)
        messenger.serve(service, self._on_copy, weights_peers.Copy)

    def _on_copy(self, request):
        self.asked.append((request.peer_name, request.head.begin, request.head.end))
        if self._goes_on or len(self.asked) <= self._after:
            self._answer(request)
        else:
            self._waiting.append(request)

    def go_on(self):
        def answer():
            self._goes_on = True
            for request in self._waiting:
                self._answer(request)

        self._messenger.submit(answer)


def test_eight_machines_get_a_version_from_each_other_while_it_is_on_its_way(job, monkeypatch, patient):
    actor = job.member("actor:0")
    sent = count_replicas(monkeypatch, actor)
    held = Held(job.messengers["actor:0"], "weights.piece", after=8)
    readers = [job.member(f"rollout:{number}", f"machine{number}") for number in range(NUM_MACHINES)]
    actor.publish("policy", large(1), 1)
    intos = [large(-1) for _ in readers]
    handles = [fetching(reader, into) for reader, into in zip(readers, intos, strict=True)]
    # All have what the publisher has given so far, and nobody has all.
    driver = job.messengers["actor:0"]
    for reader in readers:
        wait_until(lambda reader=reader: held_by(reader) and held_by(reader)[0][0] > 0, driver)
    filled = [held_by(reader)[0] for reader in readers]
    assert all(0 < here < whole for here, whole in filled)
    held.go_on()
    assert [handle.wait() for handle in handles] == [1] * NUM_MACHINES
    assert [numbers_in(into) for into in intos] == [{1}] * NUM_MACHINES
    assert len(sent) == 1
    asked = [(begin, end) for _, begin, end in held.asked]
    assert len(set(asked)) == len(asked), "the publisher gives each byte once"
    actor.publish("policy", state(2), 2)
    for number in range(NUM_MACHINES):
        wait_until(lambda number=number: job.arena(f"rollout:{number}").num_held == 0, driver)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_who_copies_from_one_that_dies_or_stops_goes_on_elsewhere_with_the_byte_it_has(
    job, monkeypatch, number
):
    # Of one that dies it is told; of one that stops it hears nothing.
    monkeypatch.setattr(pieces, "PIECE_TIMEOUT_S", DEADLINE_S if number == signal.SIGKILL else 3.0)
    actor = job.member("actor:0")
    sent = count_replicas(monkeypatch, actor)
    held = Held(job.messengers["actor:0"], "weights.piece", after=12)
    actor.publish("policy", large(1), 1)
    _, pipe, _ = job.start(weights_peers.signal_itself_after_pieces, "rollout:0", number, 8, machine="there")
    pipe.send(None)
    wait_until(lambda: sent, job.messengers["actor:0"])
    reader, into = job.member("rollout:1", "elsewhere"), large(-1)
    begun = []
    begin = pieces.Copying.begin
    monkeypatch.setattr(
        pieces.Copying,
        "begin",
        lambda self, *args: (begun.append(self.held.filled), begin(self, *args)),
    )
    handle = fetching(reader, into)
    wait_until(lambda: len(begun) > 1, job.messengers["actor:0"])
    held.go_on()
    assert handle.wait() == 1
    assert numbers_in(into) == {1}
    assert sent[:2] == ["rollout:0", "rollout:1"]
    assert begun[0] == 0
    assert begun[1] > 0


def test_a_machine_that_holds_up_those_behind_it_is_passed_over(job, monkeypatch):
    monkeypatch.setattr(publisher, "SLOW_S", 0.3)
    actor = job.member("actor:0")
    actor.publish("policy", large(1), 1)
    slow, reader = job.member("slow:0", "slow"), job.member("rollout:0", "there")
    begun, go_on = hold_up_copies(monkeypatch, slow, job.messengers["slow:0"])
    held_up = fetching(slow, large(-1))
    assert begun.wait(DEADLINE_S)
    into = large(-1)
    # It is sent to the slow one, which has nothing.
    assert fetching(reader, into).wait() == 1
    assert numbers_in(into) == {1}
    go_on()
    assert held_up.wait() == 1


def test_readers_of_a_machine_do_not_stop_with_its_replica(job, monkeypatch):
    monkeypatch.setattr(reading, "COPY_TIMEOUT_S", 0.5)
    actor = job.member("actor:0")
    actor.publish("policy", state(1), 1)
    job.start(weights_peers.signal_itself_when_it_is_asked, "rollout:0", signal.SIGSTOP, machine="there")
    for name in ("rollout:1", "rollout:2"):
        into = state(-1)
        assert job.member(name, "there").fetch("policy", into, timeout_s=DEADLINE_S).wait() == 1
        assert numbers_in(into) == {1}


def test_who_no_longer_wants_what_it_copies_is_left_by_those_behind_it(job, monkeypatch, patient):
    actor = job.member("actor:0")
    sent = count_replicas(monkeypatch, actor)
    held = Held(job.messengers["actor:0"], "weights.piece", after=4)
    actor.publish("policy", large(1), 1)
    first, second = job.member("rollout:0", "first"), job.member("rollout:1", "second")
    given_up, into = fetching(first, large(-1)), large(-1)
    driver = job.messengers["actor:0"]
    wait_until(lambda: held_by(first) and held_by(first)[0][0] > 0, driver)
    handle = fetching(second, into)
    wait_until(lambda: held_by(second) and held_by(second)[0][0] > 0, driver)
    given_up.cancel()
    wait_until(lambda: sent == ["rollout:0", "rollout:1"], driver)
    held.go_on()
    assert handle.wait() == 1
    assert numbers_in(into) == {1}
    wait_until(job.arena("rollout:0").unused, driver)


def test_what_is_replaced_stays_for_those_that_have_begun_to_copy_it(job, patient):
    actor = job.member("actor:0")
    held = Held(job.messengers["actor:0"], "weights.piece", after=4)
    actor.publish("policy", large(1), 1)
    readers = [job.member(f"rollout:{number}", f"machine{number}") for number in range(3)]
    intos = [large(-1) for _ in readers]
    handles = [fetching(reader, into) for reader, into in zip(readers, intos, strict=True)]
    driver = job.messengers["actor:0"]
    for reader in readers:
        wait_until(lambda reader=reader: held_by(reader) and held_by(reader)[0][0] > 0, driver)
    actor.publish("policy", large(2), 2)
    held.go_on()
    assert [handle.wait() for handle in handles] == [1] * 3
    assert [numbers_in(into) for into in intos] == [{1}] * 3
    wait_until(lambda: len(published_by(actor)) == 1, driver)
    for number in range(3):
        wait_until(lambda number=number: job.arena(f"rollout:{number}").num_held == 0, driver)


def test_what_is_replaced_does_not_stay_for_ever(job, monkeypatch):
    monkeypatch.setattr(publisher, "COPY_TIMEOUT_S", 0.2)
    monkeypatch.setattr(publisher, "COPY_BYTES_PER_S", 1 << 40)
    actor, reader = job.member("actor:0"), job.member("rollout:0", "there")
    actor.publish("policy", large(1), 1)
    begun, go_on = hold_up_copies(monkeypatch, reader, job.messengers["rollout:0"])
    into = large(-1)
    handle = fetching(reader, into)
    assert begun.wait(DEADLINE_S)
    actor.publish("policy", large(2), 2)
    wait_until(lambda: len(published_by(actor)) == 1, job.messengers["actor:0"])
    go_on()
    assert handle.wait() == 2
    assert numbers_in(into) == {2}


def test_what_is_replaced_stays_as_long_as_a_slow_link_carries_pieces_of_it(job, monkeypatch, patient):
    monkeypatch.setattr(publisher, "COPY_TIMEOUT_S", 0.3)
    monkeypatch.setattr(publisher, "COPY_BYTES_PER_S", 1 << 40)
    actor, reader = job.member("actor:0"), job.member("rollout:0", "there")
    there, looks = actor._versions._publisher, []
    look = there._forget_unless_asked

    def look_after_a_piece(key, before):
        """Have a piece asked for between two looks, however long the machine stands still between them."""
        if there._num_asked(key) == before and not handle.done():
            job.messengers["actor:0"].call_later(0.05, partial(look_after_a_piece, key, before))
        else:
            looks.append(handle.done())
            look(key, before)

    monkeypatch.setattr(there, "_forget_unless_asked", look_after_a_piece)
    SlowLink(job.messengers["actor:0"], "weights.piece", 0.1)
    actor.publish("policy", large(1), 1)
    handle = fetching(reader, into := large(-1))
    wait_until(lambda: held_by(reader) and held_by(reader)[0][0] > 0, job.messengers["actor:0"])
    actor.publish("policy", large(2), 2)
    assert handle.wait() == 1
    assert numbers_in(into) == {1}
    assert looks.count(False) > 1
    wait_until(lambda: len(published_by(actor)) == 1, job.messengers["actor:0"])


def test_without_shared_memory_pieces_are_handed_on_all_the_same(job):
    actor = job.member("actor:0", arena_limit_bytes=0)
    actor.publish("policy", large(1), 1)
    readers = [
        job.member(f"rollout:{number}", f"machine{number}", arena_limit_bytes=0) for number in range(3)
    ]
    intos = [large(-1) for _ in readers]
    handles = [fetching(reader, into) for reader, into in zip(readers, intos, strict=True)]
    assert [handle.wait() for handle in handles] == [1] * 3
    assert [numbers_in(into) for into in intos] == [{1}] * 3


def test_bytes_are_received_where_they_are_to_lie(job, monkeypatch):
    actor, reader = job.member("actor:0"), job.member("rollout:0", "there")
    actor.publish("policy", large(1), 1)
    copied = []
    take = pieces.Copying._take

    def note(self, begin, end, places, frames):
        if begin:
            copied.extend(frame is not place for frame, place in zip(frames, places, strict=True))
        take(self, begin, end, places, frames)

    monkeypatch.setattr(pieces.Copying, "_take", note)
    assert fetching(reader, large(-1)).wait() == 1
    assert copied
    assert not any(copied)


class SlowLink:
    """A process whose answers for pieces take their time one after the other, also those that nobody waits for."""

    def __init__(self, messenger, service, each_s):
        self._each_s, self._messenger, self._free_at = each_s, messenger, 0.0
        self._answer = messenger._services[service].handler
        messenger.unserve(service)
        messenger.serve(service, self._on_copy, weights_peers.Copy)

    def _on_copy(self, request):
        self._free_at = max(self._free_at, self._messenger.now()) + self._each_s
        self._messenger.call_later(self._free_at - self._messenger.now(), lambda: self._answer(request))


@pytest.mark.parametrize("each_s", [0.02, 0.06])
def test_a_version_arrives_over_a_link_on_which_a_window_takes_longer_than_anybody_may_be_silent(
    job, monkeypatch, each_s
):
    monkeypatch.setattr(pieces, "PIECE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(pieces, "PIECE_BYTES_PER_S", 1 << 40)
    actor, into = job.member("actor:0"), large(-1)
    SlowLink(job.messengers["actor:0"], "weights.piece", each_s)
    actor.publish("policy", large(1), 1)
    assert fetching(job.member("rollout:0", "there"), into).wait() == 1
    assert numbers_in(into) == {1}


def test_two_readers_of_a_process_do_not_take_the_copy_away_from_each_other(job, monkeypatch, patient):
    actor, reader = job.member("actor:0"), job.member("rollout:0", "there")
    sent = count_replicas(monkeypatch, actor)
    held = Held(job.messengers["actor:0"], "weights.piece", after=4)
    actor.publish("policy", large(1), 1)
    intos = [large(-1), large(-1)]
    handles = [fetching(reader, intos[0])]
    wait_until(lambda: held_by(reader) and held_by(reader)[0][0] > 0, job.driver)
    handles.append(fetching(reader, intos[1]))
    (published,) = published_by(actor)
    wait_until(lambda: published.questions, job.driver)
    # As if a third one, which had it before them, had given up a moment ago.
    there, publisher_at = job.messengers["rollout:0"], job.messengers["actor:0"].endpoint
    there.request(publisher_at, "weights.kept", Kept(published.key, None), reply_type=bool).result()
    wait_until(lambda: len(sent) > 1, job.driver)
    held.go_on()
    assert [handle.wait() for handle in handles] == [1, 1]
    assert [numbers_in(into) for into in intos] == [{1}, {1}]
    assert len(sent) == 2
