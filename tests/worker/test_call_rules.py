"""A call and its result, whatever the ranks answer and in which order: without a process, a thread or a socket."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import Endpoint, Reply, decode, encode
from rlinf_scheduler.comm.failure import dump_failure
from rlinf_scheduler.comm.peers import LostPeer
from rlinf_scheduler.comm.requests import RequestFuture
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.transport.peer_session import Loss
from rlinf_scheduler.errors import (
    CallCancelled,
    PeerDied,
    ResultTimeout,
    SharedMemoryUnreadable,
    WorkerDied,
    WorkerError,
)
from rlinf_scheduler.host import protocol
from rlinf_scheduler.observe.levels import Additions
from rlinf_scheduler.observe.process_stats import Activity
from rlinf_scheduler.worker import call as call_module
from rlinf_scheduler.worker import group_calls
from rlinf_scheduler.worker.call import Call, CallAgain, Target
from rlinf_scheduler.worker.group_calls import MAX_UNTAKEN, PendingCalls, UntakenFailures
from rlinf_scheduler.worker.result import GroupResult
from rlinf_scheduler.worker.stream import GroupStream, StreamCall, ValueCell

# Of the message with a call's part, whichever it is.
NUMBER = 3


class Ranks:
    """What a call has instead of a messenger: the ranks' side, played by the test."""

    def __init__(self, num_ranks):
        self.targets = [
            Target(WorkerAddress("g", rank), Endpoint(f"process {rank}", "", "", ""))
            for rank in range(num_ranks)
        ]
        self.payloads = self
        self.peers = SimpleNamespace(never_left=lambda *_: False, lost={})
        self.asked = {target.endpoint.process_id: [] for target in self.targets}
        self.cancelled = []
        self.distrusted = []
        self.unreadable = 0

    # What a messenger does.

    def request(self, endpoint, service, head, frames=(), **_options):
        answer = RequestFuture(lambda: None, Any)
        answer.number = NUMBER
        self.asked[endpoint.process_id].append((service, head, [bytes(frame) for frame in frames], answer))
        return answer

    def notify(self, endpoint, service, head):
        assert service == protocol.CANCEL
        self.cancelled.append(endpoint.process_id)

    def submit(self, callback):
        callback()

    # What its payloads do.

    def reads_ours(self, _process_id):
        return True

    def pack(self, encoded, _peer, **_options):
        frames = encoded.snapshot()
        return SimpleNamespace(frames_for=lambda _peer: frames)

    def release_dropped(self):
        pass

    def distrust(self, process_id, reason):
        self.distrusted.append((process_id, reason))

    def receive(self, frames):
        if self.unreadable:
            self.unreadable -= 1
            raise SharedMemoryUnreadable("out of descriptors")
        return ReceivedPayload(frames)

    # What the test does.

    def call(self, method="act", *args):
        call = Call(self, method, self.targets, encode((args, {})))
        call.start()
        return call, GroupResult(call, lambda address, wait_s, otherwise: "it was killed")

    def answer(self, rank, head, *frames):
        self.asked[f"process {rank}"][-1][-1].set_result(Reply(head, list(frames)))

    def give(self, rank, value, **durations):
        self.answer(rank, protocol.Returned(durations), *encode(value).snapshot())

    def fail(self, rank, error):
        self.answer(rank, protocol.Raised(), dump_failure(error))

    def give_up(self, rank):
        self.answer(rank, protocol.Cancelled())

    def die(self, rank):
        self.asked[f"process {rank}"][-1][-1].set_exception(PeerDied("g", "its connection broke"))


def test_every_rank_is_asked_once_with_the_arguments():
    ranks = Ranks(3)
    ranks.call("act", 1, "two")
    for asked in ranks.asked.values():
        ((service, head, frames, _),) = asked
        assert (service, head.method, head.kind) == (protocol.CALL, "act", "call")
        assert decode(frames[0], frames[1:]) == ((1, "two"), {})


def test_a_rank_that_cannot_read_its_arguments_gets_them_again_and_is_cancelled_again():
    ranks = Ranks(2)
    call, result = ranks.call()
    call.cancel()
    ranks.answer(0, protocol.Unread("no room"))
    assert ranks.distrusted == [("process 0", "no room")]
    assert [len(asked) for asked in ranks.asked.values()] == [2, 1]
    assert ranks.cancelled == ["process 0", "process 1", "process 0"]
    ranks.give_up(0)
    ranks.give_up(1)
    assert [type(end) for end in result.results(True, 0.0)] == [CallCancelled] * 2


def test_a_result_that_cannot_be_read_where_it_lies_is_asked_for_as_bytes():
    ranks = Ranks(1)
    call, result = ranks.call()
    ranks.unreadable = 1
    ranks.give(0, "first")
    service, head, _, _ = ranks.asked["process 0"][-1]
    assert service == protocol.AGAIN
    assert head.number == call._head.number
    assert not result.done()
    ranks.give(0, "as bytes")
    assert result.wait(0.0) == ["as bytes"]


def test_a_rank_that_was_only_cancelled_says_less_than_one_that_failed():
    ranks = Ranks(2)
    _, result = ranks.call()
    ranks.give_up(0)
    ranks.fail(1, LookupError("no data"))
    with pytest.raises(WorkerError, match="rank 1 of 'g' raised in act"):
        result.wait(0.0)


def test_a_death_is_told_with_the_reason_that_is_known_then():
    ranks = Ranks(2)
    _, result = ranks.call()
    ranks.die(1)
    with pytest.raises(WorkerDied, match=r"rank 1 of 'g' died during act\(\): it was killed") as caught:
        result.wait(0.0)
    assert isinstance(caught.value.__cause__, PeerDied)


@pytest.mark.parametrize("is_told_first", [False, True])
def test_a_call_that_never_left_is_not_one_that_a_group_which_starts_anew_has_begun(is_told_first):
    ranks, lost = Ranks(1), []
    ranks.peers = SimpleNamespace(never_left=lambda _, number: bool(lost) and number in (0, NUMBER))
    again = CallAgain(lambda address: Target(address, None), as_one=True)
    call = Call(ranks, "act", ranks.targets, encode(((), {})), again=again)
    call.start()
    assert call.was_sent
    lost.append("process 0")
    if is_told_first:
        assert not call.was_sent
    ranks.die(0)
    assert not call.was_sent
    call.go_on(ranks.targets[0])
    ranks.give(0, "from the next process")
    assert GroupResult(call, None).wait(0.0) == ["from the next process"]


@pytest.mark.parametrize("loss", [Loss.LEFT, Loss.ENDED])
def test_a_call_is_sent_again_where_its_rank_said_goodbye_before_it_began_it(loss):
    ranks = Ranks(1)
    lost = {"process 0": LostPeer("g:0", "it is gone", loss)}
    call = Call(
        ranks, "act", ranks.targets, encode(((), {})), again=CallAgain(lambda address: Target(address, None))
    )
    call.start()
    ranks.peers.lost = lost
    ranks.die(0)
    assert call.complete.done() == (loss is Loss.ENDED)
    assert call.awaits(0) == (loss is Loss.LEFT)


def test_a_call_that_goes_on_as_its_rank_ends_is_not_sent_again():
    ranks = Ranks(1)
    call = Call(
        ranks, "act", ranks.targets, encode(((), {})), again=CallAgain(lambda address: Target(address, None))
    )
    call.start()
    ranks.answer(0, protocol.Abandoned())
    ranks.peers.lost = {"process 0": LostPeer("g:0", "it said goodbye", Loss.LEFT)}
    with pytest.raises(WorkerDied, match=r"died during act\(\)"):
        GroupResult(call, lambda address, wait_s, otherwise: otherwise).wait(0.0)


def test_a_call_whose_result_is_gone_with_its_rank_is_not_sent_again():
    ranks = Ranks(1)
    call = Call(
        ranks, "act", ranks.targets, encode(((), {})), again=CallAgain(lambda address: Target(address, None))
    )
    call.start()
    ranks.unreadable = 1
    ranks.give(0, "read too late", act=1.0)
    ranks.peers.lost = {"process 0": LostPeer("g:0", "it said goodbye", Loss.LEFT)}
    ranks.die(0)  # which was asked for it as bytes
    with pytest.raises(WorkerDied, match=r"died during act\(\)"):
        GroupResult(call, lambda address, wait_s, otherwise: otherwise).wait(0.0)


def test_durations_of_ranks_that_failed_count():
    ranks = Ranks(2)
    _, result = ranks.call()
    ranks.give(0, None, act=2.0)
    ranks.answer(1, protocol.Raised({"act": 5.0}), dump_failure(LookupError("x")))
    assert result.durations(reduce=None, timeout_s=0.0) == {"act": [2.0, 5.0]}
    assert result.unread_failure() is not None, "to ask how long it took is not to ask what came of it"


ANSWERS = ("give", "fail", "give up", "die")


@st.composite
def stories(draw):
    """How many ranks there are; what happens in turn: a rank's answer, the group's death, a cancellation."""
    num_ranks = draw(st.integers(1, 4))
    events = [(draw(st.sampled_from(ANSWERS)), rank) for rank in draw(st.permutations(range(num_ranks)))]
    events = events[: draw(st.integers(0, num_ranks))]
    for what in draw(st.lists(st.sampled_from(["cancel", "abort"]), max_size=2)):
        events.insert(draw(st.integers(0, len(events))), (what, 0))
    return num_ranks, events


@given(stories())
def test_whatever_happens_the_first_failure_settles_it_and_all_answers_complete_it(story):
    num_ranks, events = story
    ranks = Ranks(num_ranks)
    call, result = ranks.call()
    answered, failed, is_cancelled, is_aborted = {}, False, False, False
    for what, rank in events:
        if what == "cancel":
            left = num_ranks - len(answered)
            before = len(ranks.cancelled)
            call.cancel()
            assert len(ranks.cancelled) - before == left
            is_cancelled |= left > 0
        elif what == "abort":
            call.abort(WorkerDied("g", 9, "act", "killed"))
            is_aborted = True
        else:
            answered[rank] = what
            failed |= what != "give"
            {
                "give": lambda rank: ranks.give(rank, rank * 10),
                "give up": ranks.give_up,
                "die": ranks.die,
            }.get(what, lambda rank: ranks.fail(rank, LookupError(f"no data on {rank}")))(rank)
        everybody = len(answered) == num_ranks
        assert result.done() == (failed or is_cancelled or is_aborted or everybody)
        assert call.complete.done() == (everybody or is_aborted)
    if not result.done():
        missing = ", ".join(f"g:{rank}" for rank in range(num_ranks) if rank not in answered)
        with pytest.raises(ResultTimeout, match=missing):
            result.wait(0.0)
        return
    if call.failed:
        kinds = {"fail": WorkerError, "die": WorkerDied, "give up": CallCancelled}
        expected = {kinds[what] for what in answered.values() if what != "give"}
        if call.aborted is not None:
            expected.add(type(call.aborted))
        for _ in range(2):
            with pytest.raises(tuple(expected)):
                result.wait(0.0)
    else:
        assert result.wait(0.0) == result.wait(0.0) == [rank * 10 for rank in range(num_ranks)]
    if call.complete.done():
        for rank, outcome in enumerate(result.results(return_exceptions=True, timeout_s=0.0)):
            kind = answered.get(rank)
            assert (outcome == rank * 10) if kind == "give" else isinstance(outcome, BaseException)


@given(st.permutations(range(4)))
def test_arguments_are_kept_until_the_last_rank_has_answered_and_no_longer(order):
    ranks = Ranks(4)
    call, _ = ranks.call()
    for rank in order[:-1]:
        ranks.give(rank, None)
        assert len(call._payloads) == 4
    ranks.give(order[-1], None)
    assert call._payloads == []


def test_how_long_a_rank_was_at_a_call_counts_from_when_it_was_sent_there(monkeypatch):
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(call_module, "time", clock)
    monkeypatch.setattr(group_calls, "time", clock)
    ranks, pending = Ranks(2), PendingCalls()
    back = ranks.targets[1]
    ranks.targets[1] = back._replace(endpoint=None)  # it is away
    call = Call(ranks, "act", ranks.targets, encode(((), {})))
    pending.add(call)
    call.start()
    clock.now += 3.0
    assert (call.awaits(0), call.awaits(1)) == (False, True)
    assert (pending.end_of(0), pending.end_of(1)) == ("3.0 s into act()", "")
    call.go_on(back)
    clock.now += 0.5
    assert not call.awaits(1)
    assert pending.end_of(1) == "0.5 s into act()"


def test_of_the_calls_of_a_rank_that_died_the_first_is_named_though_others_are_at_it_still():
    ranks, pending = Ranks(2), PendingCalls()
    ran = Call(ranks, "train", ranks.targets, encode(((), {})))
    waited = Call(ranks, "look", ranks.targets[:1], encode(((), {})))
    for call in (ran, waited):
        pending.add(call)
        call.start()
    for _, _, _, answer in ranks.asked["process 0"]:
        answer.set_exception(PeerDied("g:0", "its connection was closed"))
    assert (waited.complete.done(), ran.complete.done()) == (True, False)
    assert pending.end_of(0) == "0.0 s into train()"


def test_what_has_failed_is_told_of_in_a_line_while_nobody_has_taken_it():
    ranks, activity, idle = Ranks(1), Additions(), Activity("driver", 1, "here")
    untaken = UntakenFailures(SimpleNamespace(service=lambda _kind: activity))

    def fail(text):
        call, result = ranks.call()
        ranks.fail(0, ValueError(text))
        untaken.note(call)
        ranks.asked["process 0"].clear()
        return result

    # Of those whose results nobody has, nothing stays.
    for _ in range(100):
        fail("dropped")
    assert len(activity._additions) == 1
    assert activity.applied(idle) == idle
    assert activity._additions == {}

    kept = [fail(f"{number} \x1b[2J" + "x" * 1000 + "\nand so on") for number in range(2 * MAX_UNTAKEN)]
    told = activity.applied(idle).failures
    assert [line.split()[6] for line in told] == [str(each) for each in range(MAX_UNTAKEN, 2 * MAX_UNTAKEN)]
    assert all(line.startswith("g:0 has failed in act(): ValueError: ") for line in told)
    assert all(len(line) < 400 and line.isprintable() for line in told)
    for result in kept:
        result.results(return_exceptions=True)
    assert activity.applied(idle) == idle
    assert activity._additions == {}


def test_a_rank_that_has_died_in_a_call_is_told_of_until_that_is_taken():
    ranks = Ranks(1)
    call, result = ranks.call("produce")
    ranks.die(0)
    assert call.untaken_failure() == "g:0 has died during produce()"
    result.results(return_exceptions=True)
    assert call.untaken_failure() == ""


def test_a_value_of_a_stream_that_is_gone_with_its_rank_is_an_error_and_no_end():
    ranks = Ranks(1)
    heads = [ValueCell()]
    call = StreamCall(ranks, "play", ranks.targets, encode(((), {})), heads)
    call.start()
    stream = GroupStream(call, GroupResult(call, lambda address, wait_s, otherwise: "it left"), heads)
    (_, call_of_it), (_, first), *_ = [(each[0], each[-1]) for each in ranks.asked["process 0"]]
    ranks.unreadable = 1
    first.set_result(Reply(protocol.StreamValue(), list(encode("a value").snapshot())))
    assert ranks.asked["process 0"][-1][0] == protocol.AGAIN
    call_of_it.set_result(Reply(protocol.Returned({"play": 1.0}), list(encode(None).snapshot())))
    ranks.die(0)
    with pytest.raises(WorkerDied, match="it was computed, and is gone"):
        next(stream)
