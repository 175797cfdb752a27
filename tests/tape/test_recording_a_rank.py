"""A rank that is recorded, and run again alone from that: in this process, without a cluster."""

import asyncio
import copy
import os
import random
import threading
from contextlib import ExitStack, closing

import numpy as np
import pytest
from recorded_workers import Changed, Learner

from rlinf.scheduler import Channel, Slice
from rlinf.testing import Replay
from rlinf_scheduler.errors import (
    ChannelNotFound,
    ConfigError,
    PeerNotFound,
    RecordingError,
    ReplayDiffers,
    ReplayEnded,
)
from rlinf_scheduler.session import Session
from rlinf_scheduler.tape.limit import limit_bytes
from rlinf_scheduler.tape.recorded_rank import RecordedRank
from rlinf_scheduler.tape.tape import NO_TAPE, Tape
from rlinf_scheduler.weights import Weights, open_weights
from rlinf_scheduler.weights.records import PublishingRank

NUM_TRAJECTORIES = 5


def plain(value):
    """A value whose equality is that of its bytes."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return value


def trajectory(number):
    tokens = np.random.default_rng(number).integers(0, 9, 50_000)
    return {"tokens": tokens, "rewards": tokens.astype(np.float32)[::3] / 7, "number": number}


def make(recorded, scale=2.0):
    for name in ("trajectories", "metrics"):
        Channel.create(name)
    return recorded.make(Learner, scale)


def train(recorded, step=0):
    """What others do for a call of `train`, and the call."""
    channel = Channel.connect("trajectories")
    for number in range(NUM_TRAJECTORIES):
        channel.put(trajectory(10 * step + number), version=step)
    recorded.worker.send([step, np.full(7, step / 3)], "actor", 0)
    weights = {"w": np.random.default_rng(step).standard_normal(1000)}
    recorded.runtime.service(open_weights).publish("policy", weights, step)
    recorded.call("train", 0.5 * (step + 1))
    metrics = Channel.connect("metrics")
    for _ in range(2):
        metrics.get(timeout_s=60)


def inputs_of(recorded, **options):
    """What the rank has when it is run again, and what is told of it; the one that was recorded goes."""
    recorded.close()
    with Replay(recorded.folder, "actor:0", **options) as replay:
        told = list(replay.run())
        return plain(replay.worker.inputs), told, replay.notes


def test_it_has_the_same_inputs_in_the_same_order_bit_by_bit(recorded):
    worker = make(recorded)
    for step in range(2):
        train(recorded, step)
    inputs, told, notes = inputs_of(recorded, check=True)
    assert inputs == plain(worker.inputs)
    assert told == ["__init__: done", "call 1, train(): done", "call 2, train(): done"]
    assert notes == []


def test_weights_of_several_processes_come_again(recorded):
    worker, runtime = make(recorded), recorded.runtime
    with ExitStack() as stack:
        for rank in range(2):
            trainer = stack.enter_context(
                closing(Session(runtime.secret, f"trainer:{rank}", home=runtime.home))
            )
            here = PublishingRank(trainer.messenger.endpoint, trainer.name, "trainer", 1, rank, 2)
            columns = Slice(np.arange(12.0).reshape(4, 3) + rank, (0, 3 * rank), (4, 6))
            Weights(trainer.messenger, runtime.home, rank=here).publish("shards", {"w": columns}, 7)
        recorded.call("fetch_shards")
    inputs, _, _ = inputs_of(recorded, check=True)
    assert [name for name, _ in inputs] == ["version", "half", "w"]
    assert inputs == plain(worker.inputs)


def test_what_it_does_with_its_inputs_changes_nothing_in_the_recording(recorded, monkeypatch):
    worker = make(recorded)
    monkeypatch.setattr(worker, "inputs", Spoiling())
    train(recorded)
    inputs, _, _ = inputs_of(recorded)
    assert inputs == plain(worker.inputs.kept)


class Spoiling(list):
    """Writes into what it is given, as programs do that train in place."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def append(self, item):
        self.kept.append(copy.deepcopy(item))
        for value in item:
            if isinstance(value, dict):
                value["tokens"][:] = -1


def test_two_threads_that_read_two_channels_have_each_its_own(recorded):
    worker = make(recorded)
    for name in ("trajectories", "metrics"):
        for number in range(3):
            Channel.connect(name).put((name, number))
    recorded.call("read_beside")
    inputs, _, _ = inputs_of(recorded)
    assert sorted(inputs) == sorted(plain(worker.inputs))
    for name in ("trajectories", "metrics"):
        assert [item[1] for which, item in inputs if which == name] == [0, 1, 2]


def test_what_a_task_leases_is_written_by_its_own_thread(recorded, monkeypatch):
    """Not by the I/O thread, where everybody would wait for the disk."""
    worker = make(recorded)
    write, writers = recorded.tape.write, []

    def noted(entry, frames=()):
        writers.append((threading.get_ident(), sum(map(len, frames)) > 100_000))
        write(entry, frames)

    monkeypatch.setattr(recorded.tape, "write", noted)

    async def lease():
        leasing = asyncio.create_task(recorded.call_async("lease_in_a_task"))
        await asyncio.sleep(0)  # it asks before there is anything
        Channel.connect("trajectories").put(trajectory(1))
        await leasing

    asyncio.run(lease())
    assert [who for who, has_items in writers if has_items] == [threading.get_ident()]
    inputs, _, _ = inputs_of(recorded, check=True)
    assert inputs == plain(worker.inputs)


def test_what_had_not_come_yet_has_not_come_yet_again(recorded):
    worker = make(recorded)
    for number in range(3):
        Channel.connect("trajectories").put(number)
    recorded.call("look_whether_it_came")
    inputs, _, _ = inputs_of(recorded, check=True)
    assert inputs == plain(worker.inputs)
    assert inputs[:4] == [
        ["meanwhile", 0, False],
        ["meanwhile", 1, False],
        ["not yet", False],
        ["came", "what came"],
    ]


def test_who_only_looks_whether_something_comes_that_never_came_is_told(recorded, monkeypatch):
    make(recorded)
    recorded.call("draw")
    recorded.close()
    monkeypatch.setattr(Learner, "draw", Learner.look_for_ever)
    told = r"call 1, draw\(\): get 1 of metrics 'default': it had none of these"
    with Replay(recorded.folder) as replay, pytest.raises(ReplayEnded, match=told):
        list(replay.run())


def test_what_it_asks_is_answered_as_then_and_what_it_is_asked_comes_again(recorded):
    worker = make(recorded)
    channel = Channel.create("questions")
    consulting = threading.Thread(target=recorded.call, args=("consult",))
    consulting.start()
    for answer in (np.arange(5), {"b": 2}):
        with channel.next_request(timeout_s=60) as request:
            request.reply(answer)
    channel.next_request(timeout_s=60).fail(LookupError("nobody knows"))
    consulting.join()
    asked = channel.ask(21, async_op=True, timeout_s=60)
    recorded.call("answer")
    assert asked.wait(60) == 42
    inputs, _, _ = inputs_of(recorded, check=True)
    assert inputs == plain(worker.inputs)
    assert inputs[2:] == [["failed", "nobody knows"], ["asked", 21, 1]]


def test_tensors_are_the_same_bit_by_bit(recorded):
    torch = pytest.importorskip("torch")
    worker = make(recorded)
    tensor = torch.linspace(-3, 3, 5000).bfloat16().reshape(50, 100)
    tensor[0, 0] = float("nan")
    Channel.connect("trajectories").put({"tensor": tensor})
    worker.send_tensor(tensor.T.contiguous(), "actor", 0)
    recorded.call("take_tensors", torch.zeros(100, 50, dtype=torch.bfloat16))
    recorded.close()
    with Replay(recorded.folder, check=True) as replay:
        list(replay.run())
        found, filled = replay.worker.inputs[0][1]["tensor"], replay.worker.inputs[1][1]
    for again, then in ((found, tensor), (filled, tensor.T)):
        assert again.dtype == then.dtype
        assert torch.equal(again.view(torch.int16), then.contiguous().view(torch.int16))


def test_what_it_gives_is_compared_and_the_first_difference_named(recorded):
    make(recorded)
    train(recorded)
    recorded.close()
    program = f"{Changed.__module__}.py"
    path = f"{__file__.rpartition('/')[0]}/{program}:Changed"
    problem = r"call 1, train\(\): put 1 to metrics 'default': it gives \d+ bytes .* where it gave \d+ bytes"
    with (
        Replay(recorded.folder, program=path, check=True) as replay,
        pytest.raises(ReplayDiffers, match=problem),
    ):
        list(replay.run())
    with Replay(recorded.folder, program=path) as replay:
        assert len(list(replay.run())) == 2  # as it is, without


def test_who_asks_for_more_than_there_was_is_told_what_there_was(recorded, monkeypatch):
    make(recorded)
    train(recorded)
    recorded.close()

    def greedy(self, _learning_rate):
        while True:
            self.trajectories.get(timeout_s=1)

    monkeypatch.setattr(Learner, "train", greedy)
    told = r"call 1, train\(\): get 3 of trajectories 'default': it had ended 2 of these"
    with Replay(recorded.folder) as replay, pytest.raises(ReplayEnded, match=told):
        list(replay.run())


def test_who_asks_for_less_differs_too(recorded, monkeypatch):
    make(recorded)
    train(recorded)
    recorded.close()
    monkeypatch.setattr(Learner, "train", lambda self, _learning_rate: self.trajectories.get())
    problem = r"it did so \d times, and \d times then"
    with Replay(recorded.folder, check=True) as replay, pytest.raises(ReplayDiffers, match=problem):
        list(replay.run())


def test_a_rank_that_died_while_it_waited_is_run_to_there(recorded):
    worker = make(recorded)
    channel = Channel.connect("trajectories")
    for number in range(3):
        channel.put(number)
    call = threading.Thread(target=_until_it_ends, args=(recorded,))
    call.start()
    done = threading.Event()
    while len(worker.inputs) < 3:
        assert not done.wait(0.005)
    # What a rank that is killed leaves, and one whose last record is torn.
    path = f"{recorded.folder}/actor-0.rec"
    with open(path, "rb") as file:
        data = file.read()
    channel.close()
    call.join()
    for cut, note in ((0, []), (5, [r"bytes are left out"])):
        killed = f"{recorded.folder}/{cut}.rec"
        with open(killed, "wb") as file:
            file.write(data[: len(data) - cut])
        with Replay(killed) as replay:
            assert list(replay.run()) == ["__init__: done"]
            assert replay.worker.inputs == [("get", number) for number in range(3 if not cut else 2)]
            assert len(replay.notes) == len(note) + 1
            assert "get 4 of" in replay.notes[-1] or cut
            assert not note or note[0] in replay.notes[0]


def _until_it_ends(recorded):
    with pytest.raises(Exception, match="closed"):
        recorded.call("get_for_ever")


def test_a_call_that_raised_raises_again_and_the_next_is_run(recorded):
    make(recorded)
    with pytest.raises(LookupError):
        recorded.call("fail")
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(recorded.call_async("be_cancelled"))
    recorded.call("draw")
    _, told, _ = inputs_of(recorded)
    assert told[1:] == [
        "call 1, fail(): raised LookupError, as it did then",
        "call 2, be_cancelled(): raised CancelledError, as it did then",
        "call 3, draw(): done",
    ]


def test_a_call_that_did_not_raise_then_comes_through(recorded, monkeypatch):
    make(recorded)
    recorded.call("draw")
    recorded.close()
    monkeypatch.setattr(Learner, "draw", Learner.fail)
    with Replay(recorded.folder) as replay, pytest.raises(LookupError, match="nothing"):
        list(replay.run())


def test_calls_of_one_method_are_run_alone(recorded):
    make(recorded)
    recorded.call("draw")
    train(recorded)
    _, told, _ = inputs_of(recorded, method="train")
    assert told == ["__init__: done", "call 2, train(): done"]
    with pytest.raises(RecordingError, match=r"was not called for 'trian', .* did you mean 'train'"):
        Replay(recorded.folder, method="trian")


@pytest.mark.parametrize("recorded", [{"seed": 11, "seeds_generators": True}], indirect=True)
def test_its_environment_and_its_seed_are_its_own_for_the_time_being(recorded, monkeypatch):
    monkeypatch.delenv("RLINF_GROUP", raising=False)
    make(recorded)
    recorded.close()
    before = random.getstate()
    try:
        with Replay(recorded.folder) as replay:
            list(replay.run())
            assert replay.worker.seed == 11
            assert str(replay.worker.address) == "actor:0"
            assert random.random() == random.Random(11).random()
    finally:
        random.setstate(before)
    assert "RLINF_GROUP" not in os.environ


def test_a_recording_that_is_full_says_so_and_nobody_fails(recorded, monkeypatch, caplog):
    make(recorded)
    monkeypatch.setattr(recorded.tape, "_max_bytes", 300_000)
    train(recorded)
    assert "ends here: it has the size that a recording may have" in caplog.text
    _, told, notes = inputs_of(recorded)
    assert told == ["__init__: done"]
    assert "it was ended before the rank was: it has the size" in notes[0]
    assert "the recording ends at call 1, train()" in notes[1]


def test_the_bound_is_said_by_a_variable(monkeypatch):
    monkeypatch.setenv("RLINF_RECORD_MIB", "3")
    assert limit_bytes() == 3 << 20
    monkeypatch.setenv("RLINF_RECORD_MIB", "3GiB")
    with pytest.raises(ConfigError, match="RLINF_RECORD_MIB is '3GiB'; it takes a whole number of MiB"):
        limit_bytes()


def test_a_disk_that_is_full_ends_the_recording_and_not_the_rank(recorded, monkeypatch, caplog):
    make(recorded)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("rlinf_scheduler.comm.disk.Disk.pwritev", staticmethod(full))
        recorded.call("draw")
    recorded.call("draw")
    assert "cannot be written: No space left on device" in caplog.text
    assert len(caplog.records) == 1


def test_what_cannot_be_found_is_named(tmp_path, recorded):
    with pytest.raises(
        RecordingError, match=r"no recording of actor:1 in this folder; there are actor-0\.rec"
    ):
        RecordedRank(recorded.folder, "actor:1")
    RecordedRank(recorded.folder, "actor:0").close()
    with pytest.raises(RecordingError, match="it is of actor:0, not of actor:7"):
        RecordedRank(f"{recorded.folder}/actor-0.rec", "actor:7")
    with pytest.raises(RecordingError, match="there is none of any rank"):
        RecordedRank(str(tmp_path), "actor:0")


def test_a_failed_look_up_fails_again(recorded):
    class Seeker(Learner):
        def __init__(self):
            self.inputs = []
            try:
                self.connect_channel("missing", timeout_s=0)
            except ChannelNotFound as error:
                self.inputs.append(("not found", type(error.__cause__).__name__))

    worker = recorded.make(Seeker)
    assert worker.inputs == [("not found", PeerNotFound.__name__)]
    assert inputs_of(recorded)[0] == plain(worker.inputs)


def test_without_a_recording_nothing_is_noted():
    note = NO_TAPE.begin("get", "x")
    assert note is NO_TAPE.begin("put", "y")
    assert NO_TAPE.run("ask", "x", lambda: 3) == 3
    assert not Tape.is_recording
