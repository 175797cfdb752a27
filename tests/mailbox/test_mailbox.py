import asyncio
import queue
import threading

import numpy as np
import pytest
import torch

from nested_tensors import LAYOUTS, nested, parts_of
from rlinf_scheduler.comm import DirectoryClient, DirectoryServer, transfer
from rlinf_scheduler.comm.directory import Entry, LookUp
from rlinf_scheduler.errors import CodecError, CommError, CommTimeout, PeerDied, PeerNotFound
from rlinf_scheduler.mailbox import Mailbox, outbox
from weights_job import wait_until

DEADLINE_S = 60.0
LIMIT_BYTES = 10_000


@pytest.fixture
def boxes(pair, names):
    """The mailboxes of "env:0" and "rollout:0", each of which holds 10,000 bytes of the other."""
    both = []
    for messenger, directory, name in zip(pair, names, ("env:0", "rollout:0"), strict=True):
        both.append(Mailbox(messenger, directory, name, limit_bytes=LIMIT_BYTES))
        directory.register(name, messenger.endpoint)
    return both


def test_objects_arrive_in_order(boxes):
    env, rollout = boxes
    sent = [{"step": step, "data": np.full(step * 100, step)} for step in range(20)]
    handles = [env.send(item, "rollout:0", timeout_s=DEADLINE_S) for item in sent]
    for item in sent:
        received = rollout.recv("env:0", timeout_s=DEADLINE_S).wait()
        assert received["step"] == item["step"]
        assert np.array_equal(received["data"], item["data"])
    for handle in handles:
        handle.wait(DEADLINE_S)


def test_recvs_are_served_in_the_order_in_which_they_were_made(boxes):
    env, rollout = boxes
    waiting = [rollout.recv("env:0", timeout_s=DEADLINE_S) for _ in range(50)]
    for number in range(50):
        env.send(number, "rollout:0", timeout_s=DEADLINE_S)
    assert [handle.wait(DEADLINE_S) for handle in waiting] == list(range(50))


def test_both_directions_are_independent(boxes):
    env, rollout = boxes
    env.send("question", "rollout:0", timeout_s=DEADLINE_S).wait()
    rollout.send("answer", "env:0", timeout_s=DEADLINE_S).wait()
    assert env.recv("rollout:0", timeout_s=DEADLINE_S).wait() == "answer"
    assert rollout.recv("env:0", timeout_s=DEADLINE_S).wait() == "question"


def test_a_process_may_send_to_itself(boxes):
    env, _ = boxes
    array = np.zeros(1000)
    env.send(array, "env:0", timeout_s=DEADLINE_S)
    array[:] = 1
    assert not env.recv("env:0", timeout_s=DEADLINE_S).wait().any()


def test_handles_can_be_awaited(boxes):
    env, rollout = boxes

    async def play():
        for turn in range(20):
            sending = env.send(turn, "rollout:0", timeout_s=DEADLINE_S)
            assert await rollout.recv("env:0", timeout_s=DEADLINE_S).then(lambda got: got * 2) == turn * 2
            await sending

    asyncio.run(asyncio.wait_for(play(), DEADLINE_S))


def test_a_pair_that_waits_holds_up_no_other(boxes):
    _, rollout = boxes
    stuck = rollout.recv("env:0", timeout_s=DEADLINE_S)
    rollout.send("me", "rollout:0", timeout_s=DEADLINE_S)
    assert rollout.recv("rollout:0", timeout_s=DEADLINE_S).wait() == "me"
    assert not stuck.done()
    assert stuck.cancel()


def test_a_full_mailbox_holds_back_the_sender_before_its_bytes_move(boxes):
    env, rollout = boxes
    handles = [env.send(bytes([number]) * 4000, "rollout:0", timeout_s=DEADLINE_S) for number in range(10)]
    for handle in handles[:2]:
        handle.wait(DEADLINE_S)
    assert not any(handle.done() for handle in handles[2:])
    assert rollout.held_bytes("env:0") <= LIMIT_BYTES
    for number in range(10):
        assert rollout.recv("env:0", timeout_s=DEADLINE_S).wait()[0] == number
        assert rollout.held_bytes("env:0") <= LIMIT_BYTES
    for handle in handles:
        handle.wait(DEADLINE_S)


def test_an_item_above_the_limit_goes_when_the_mailbox_is_empty(boxes):
    env, rollout = boxes
    small, large = bytes(100), bytes(50 * LIMIT_BYTES)
    handles = [env.send(item, "rollout:0", timeout_s=DEADLINE_S) for item in (large, small, large)]
    for item in (large, small, large):
        assert rollout.recv("env:0", timeout_s=DEADLINE_S).wait() == item
    for handle in handles:
        handle.wait(DEADLINE_S)


def test_what_waits_for_room_is_what_it_was_when_it_was_sent(boxes):
    env, rollout = boxes
    array = np.zeros(1000)
    for number in range(5):
        array[:] = number
        env.send(array, "rollout:0", timeout_s=DEADLINE_S)
    array[:] = -1
    for number in range(5):
        assert (rollout.recv("env:0", timeout_s=DEADLINE_S).wait() == number).all()


@pytest.mark.usefixtures("patient_transfers")
def test_a_send_without_room_times_out_and_is_not_delivered(boxes):
    env, rollout = boxes
    env.send(bytes(9000), "rollout:0", timeout_s=DEADLINE_S).wait()
    late = env.send(bytes(9001), "rollout:0", timeout_s=0.1)
    with pytest.raises(CommTimeout, match=r"send to 'rollout:0' not done after \d+\.\d s, waiting for room"):
        late.wait(DEADLINE_S)
    env.send("after", "rollout:0", timeout_s=DEADLINE_S)
    assert len(rollout.recv("env:0", timeout_s=DEADLINE_S).wait()) == 9000
    assert rollout.recv("env:0", timeout_s=DEADLINE_S).wait() == "after"


def test_a_send_that_fails_and_whose_handle_nobody_has_is_told_of(boxes, pair, caplog):
    env, _ = boxes
    for _ in range(2):
        env.send("item", "nobody:0", timeout_s=0.5)
    kept = env.send("item", "nobody:1", timeout_s=0.01)
    with pytest.raises(PeerNotFound):
        kept.wait()
    wait_until(lambda: "nobody has its handle" in caplog.text, pair[0])
    (told,) = [record.getMessage() for record in caplog.records if "handle" in record.getMessage()]
    assert told.startswith(
        "a send or broadcast failed, and nobody has its handle (the first one): nobody named 'no"
    )


def test_a_cancelled_send_is_not_delivered(boxes):
    env, rollout = boxes
    env.send(bytes(9000), "rollout:0", timeout_s=DEADLINE_S).wait()
    assert env.send(bytes(9001), "rollout:0", timeout_s=DEADLINE_S).cancel()
    env.send("after", "rollout:0", timeout_s=DEADLINE_S)
    rollout.recv("env:0", timeout_s=DEADLINE_S).wait()
    assert rollout.recv("env:0", timeout_s=DEADLINE_S).wait() == "after"


def test_recvs_that_timed_out_or_were_cancelled_take_nothing(boxes):
    env, rollout = boxes
    with pytest.raises(CommTimeout, match=r"recv from 'env:0' not done after \d+\.\d s, waiting for an item"):
        rollout.recv("env:0", timeout_s=0.1).wait()
    assert rollout.recv("env:0", timeout_s=DEADLINE_S).cancel()
    env.send("whole", "rollout:0", timeout_s=DEADLINE_S).wait()
    assert rollout.recv("env:0", timeout_s=DEADLINE_S).wait() == "whole"


@pytest.mark.parametrize("timeout_s", ["a", -1, True, float("nan")])
def test_a_deadline_that_is_no_number_of_seconds_is_refused_at_once(boxes, timeout_s):
    env, rollout = boxes
    calls = (
        lambda: rollout.recv("env:0", timeout_s=timeout_s),
        lambda: env.send("x", "rollout:0", timeout_s=timeout_s),
        lambda: rollout.recv_tensor(torch.zeros(1), "env:0", timeout_s=timeout_s),
        lambda: env.broadcast("x", [("env", 0), ("rollout", 0)], timeout_s=timeout_s),
    )
    for call in calls:
        with pytest.raises(CommError, match="timeout_s is a number of seconds of at least 0"):
            call()


@pytest.mark.parametrize("timeout_s", [np.float32(20), np.int64(20), 10**400])
def test_a_deadline_may_be_any_number(boxes, timeout_s):
    env, rollout = boxes
    env.send("x", "rollout:0", timeout_s=timeout_s).wait(DEADLINE_S)
    assert rollout.recv("env:0", timeout_s=timeout_s).wait(DEADLINE_S) == "x"


def test_a_peer_that_comes_later_is_waited_for(pair, names):
    env = Mailbox(pair[0], names[0], "env:0")
    rollout = Mailbox(pair[1], names[1], "rollout:0")
    sending = [env.send(number, "rollout:0", timeout_s=DEADLINE_S) for number in range(3)]
    receiving = [rollout.recv("env:0", timeout_s=DEADLINE_S) for _ in range(3)]
    assert not any(handle.done() for handle in sending + receiving)
    names[1].register("rollout:0", pair[1].endpoint)
    assert [handle.wait(DEADLINE_S) for handle in receiving] == [0, 1, 2]
    for handle in sending:
        handle.wait(DEADLINE_S)


@pytest.mark.parametrize("operation", ["send", "recv"])
@pytest.mark.usefixtures("patient_transfers")
def test_a_peer_that_never_comes_is_named_at_the_deadline(boxes, operation):
    env, _ = boxes
    wait = (
        env.recv("actor:0", timeout_s=0.1) if operation == "recv" else env.send(1, "actor:0", timeout_s=0.1)
    )
    with pytest.raises(PeerNotFound, match=r"nobody named 'actor:0' after .* there are: "):
        wait.wait(DEADLINE_S)


def test_a_recv_ends_when_its_peer_closes_without_having_sent_anything(boxes, pair):
    _, rollout = boxes
    found = threading.Event()
    pair[0].serve("ping", lambda request: request.reply(None))
    waiting = rollout.recv("env:0", timeout_s=DEADLINE_S)
    pair[1].request(pair[0].endpoint, "ping", None).add_done_callback(lambda _: found.set())
    assert found.wait(DEADLINE_S)
    pair[0].close()
    with pytest.raises(PeerDied, match="env:0"):
        waiting.wait(DEADLINE_S)


def test_a_name_that_moves_to_another_process_is_found_there(boxes, pair, names, new_messenger, transport):
    env, _ = boxes
    env.send(1, "rollout:0", timeout_s=DEADLINE_S).wait()
    lost = threading.Event()
    pair[0].on_peer_lost(lambda _process_id: lost.set())
    pair[1].close()
    assert lost.wait(DEADLINE_S)
    names[0].expect("rollout:0")
    again = env.send(2, "rollout:0", timeout_s=DEADLINE_S)
    replacement = new_messenger("rollout:0", "there" if transport == "tcp" else None)
    directory = DirectoryClient(replacement, pair[0].endpoint)
    restarted = Mailbox(replacement, directory, "rollout:0")
    directory.register("rollout:0", replacement.endpoint)
    again.wait(DEADLINE_S)
    assert restarted.recv("env:0", timeout_s=DEADLINE_S).wait() == 2


def test_an_object_that_cannot_be_sent_is_an_error_at_once(boxes):
    env, _ = boxes
    with pytest.raises(CodecError):
        env.send(threading.Lock(), "rollout:0")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_a_tensor_is_received_in_place(boxes, dtype):
    env, rollout = boxes
    sent = torch.randint(0, 2, (10, 20)).to(dtype)
    target = torch.zeros(10, 20, dtype=dtype)
    env.send_tensor(sent, "rollout:0", timeout_s=DEADLINE_S)
    assert rollout.recv_tensor(target, "env:0", timeout_s=DEADLINE_S).wait() is target
    assert torch.equal(target, sent)


def test_a_parameter_and_a_strided_view_can_be_filled(boxes):
    env, rollout = boxes
    parameter, wide = torch.nn.Parameter(torch.zeros(3)), torch.zeros(3, 2)
    for target in (parameter, wide[:, 0]):
        env.send_tensor(torch.ones(3), "rollout:0", timeout_s=DEADLINE_S)
        rollout.recv_tensor(target, "env:0", timeout_s=DEADLINE_S).wait()
    assert torch.equal(parameter.detach(), torch.ones(3))
    assert torch.equal(wide, torch.tensor([[1.0, 0.0]] * 3))


@pytest.mark.parametrize(
    ("sent", "there"),
    [
        (torch.zeros(4), r"a float32 tensor of shape \(4,\)"),
        (torch.zeros(3, dtype=torch.int64), r"a int64 tensor of shape \(3,\)"),
        ("a string", "no plain dense tensor"),
    ],
)
@pytest.mark.parametrize("recv_first", [True, False])
def test_an_item_that_does_not_fit_is_refused_and_stays(boxes, sent, there, recv_first):
    env, rollout = boxes
    target = torch.zeros(3)
    if recv_first:
        waiting = rollout.recv_tensor(target, "env:0", timeout_s=DEADLINE_S)
        env.send(sent, "rollout:0", timeout_s=DEADLINE_S)
    else:
        env.send(sent, "rollout:0", timeout_s=DEADLINE_S).wait()
        waiting = rollout.recv_tensor(target, "env:0", timeout_s=DEADLINE_S)
    with pytest.raises(CommError, match=f"'env:0' is {there}, not a float32 tensor of shape"):
        waiting.wait(DEADLINE_S)
    assert type(rollout.recv("env:0", timeout_s=DEADLINE_S).wait()) is type(sent)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3),
        lambda: torch.zeros(3, 2)[:, 0],
        lambda: torch.nn.Parameter(torch.zeros(3)),
    ],
)
def test_a_tensor_made_for_inference_is_filled(boxes, make):
    env, rollout = boxes
    with torch.inference_mode():
        target, sent = make(), torch.ones(3)
    env.send_tensor(sent, "rollout:0", timeout_s=DEADLINE_S)
    assert rollout.recv_tensor(target, "env:0", timeout_s=DEADLINE_S).wait() is target
    assert target.tolist() == [1.0] * 3


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        (torch.zeros(1).expand(3), "expanded, or overlaps itself"),
        (torch.zeros(3).to_sparse(), "of layout torch.sparse_coo"),
        (torch.zeros(3, device="meta"), "on the meta device"),
    ],
)
def test_a_tensor_that_cannot_be_written_to_is_refused_before_anything_is_taken(boxes, target, problem):
    env, rollout = boxes
    env.send_tensor(torch.ones(3), "rollout:0", timeout_s=DEADLINE_S).wait()
    with pytest.raises(CommError, match=f"recv_tensor fills a tensor that can be written to.*{problem}"):
        rollout.recv_tensor(target, "env:0", timeout_s=DEADLINE_S)
    assert torch.equal(rollout.recv("env:0", timeout_s=DEADLINE_S).wait(), torch.ones(3))


def test_a_sparse_tensor_that_was_sent_stays_for_who_takes_it_as_it_is(boxes):
    env, rollout = boxes
    env.send_tensor(torch.ones(3).to_sparse(), "rollout:0", timeout_s=DEADLINE_S).wait()
    with pytest.raises(CommError, match="'env:0' is no plain dense tensor, not a float32 tensor of shape"):
        rollout.recv_tensor(torch.zeros(3), "env:0", timeout_s=DEADLINE_S).wait()
    assert rollout.recv("env:0", timeout_s=DEADLINE_S).wait().is_sparse


def test_send_tensor_takes_tensors_only(boxes):
    with pytest.raises(CommError, match="send_tensor takes a torch tensor, not str"):
        boxes[0].send_tensor("text", "rollout:0")
    with pytest.raises(CommError, match="recv_tensor fills a torch tensor, not list"):
        boxes[0].recv_tensor([], "rollout:0")


def test_finished_transfers_leave_no_timer_and_no_item_behind(new_messenger):
    messenger = new_messenger("alone:0")
    DirectoryServer(messenger)
    directory = DirectoryClient(messenger, messenger.endpoint)
    mailbox = Mailbox(messenger, directory, "alone:0")
    directory.register("alone:0", messenger.endpoint)
    for _ in range(2000):
        receiving = mailbox.recv("alone:0")
        mailbox.send(None, "alone:0")
        receiving.wait(DEADLINE_S)
    directory.list()
    live = [timer for _, _, timer in messenger._loop._timers if timer.callback is not None]
    assert len(live) < 10
    assert mailbox.held_bytes("alone:0") == 0


def test_an_await_of_recv_that_was_given_up_takes_nothing(boxes):
    env, rollout = boxes

    async def give_up():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(rollout.recv("env:0", timeout_s=DEADLINE_S), 0.01)

    asyncio.run(give_up())
    env.send("precious", "rollout:0", timeout_s=DEADLINE_S).wait()
    assert rollout.recv("env:0", timeout_s=DEADLINE_S).wait() == "precious"


def test_a_handle_of_recv_that_was_dropped_takes_nothing(boxes):
    env, rollout = boxes
    dropped = rollout.recv("env:0", timeout_s=DEADLINE_S)
    del dropped
    env.send("precious", "rollout:0", timeout_s=DEADLINE_S).wait()
    assert rollout.recv("env:0", timeout_s=DEADLINE_S).wait() == "precious"


def test_items_that_arrived_for_dropped_handles_come_back_in_order(boxes):
    env, rollout = boxes
    dropped = [rollout.recv("env:0", timeout_s=DEADLINE_S) for _ in range(3)]
    for number in range(4):
        env.send(number, "rollout:0", timeout_s=DEADLINE_S).wait()
    while dropped:
        del dropped[0]
    assert [rollout.recv("env:0", timeout_s=DEADLINE_S).wait() for _ in range(4)] == [0, 1, 2, 3]
    assert rollout.held_bytes("env:0") == 0


# -- tensors that have no shape in numbers ---------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_nested_tensor_is_sent_and_received_as_any_object(boxes, layout):
    env, rollout = boxes
    sent = nested(layout)
    env.send(sent, "rollout:0", timeout_s=DEADLINE_S).wait()
    env.send({"inside": sent}, "rollout:0", timeout_s=DEADLINE_S).wait()
    assert parts_of(rollout.recv("env:0", timeout_s=DEADLINE_S).wait()) == parts_of(sent)
    assert parts_of(rollout.recv("env:0", timeout_s=DEADLINE_S).wait()["inside"]) == parts_of(sent)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_nested_tensor_is_broadcast(boxes, layout):
    env, rollout = boxes
    sent, groups = nested(layout), [("env", [0]), ("rollout", [0])]
    waiting = rollout.broadcast(groups=groups, timeout_s=DEADLINE_S)
    env.broadcast(sent, groups, timeout_s=DEADLINE_S).wait()
    assert parts_of(waiting.wait()) == parts_of(sent)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_nested_tensor_has_no_shape_for_send_tensor_to_compare(boxes, layout):
    env, rollout = boxes
    with pytest.raises(
        CommError, match="nested tensor, which has no shape to compare; send and recv take it"
    ):
        env.send_tensor(nested(layout), "rollout:0")
    with pytest.raises(CommError, match=r"this one is .*[nN]ested"):
        rollout.recv_tensor(nested(layout), "env:0")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_nested_tensor_that_comes_is_none_that_recv_tensor_fills(boxes, layout):
    env, rollout = boxes
    env.send(nested(layout), "rollout:0", timeout_s=DEADLINE_S).wait()
    with pytest.raises(CommError, match="the next item from 'env:0' is no plain dense tensor, not a float32"):
        rollout.recv_tensor(torch.zeros(3), "env:0", timeout_s=DEADLINE_S).wait()
    assert rollout.recv("env:0", timeout_s=DEADLINE_S).wait().is_nested


# -- what cannot be sent ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["\ud800:0", "x" * (65 << 20)], ids=["no text", "too long"])
def test_a_name_that_no_message_carries_fails_at_once(boxes, name):
    env, _ = boxes
    for begin in (
        lambda: env.send(1, name),
        lambda: env.recv(name),
        lambda: env.broadcast(1, [("env", [0]), (name.partition(":")[0], [0])]),
    ):
        with pytest.raises(CodecError, match="names no process"):
            begin()
    env.send("next", "env:0", timeout_s=DEADLINE_S).wait()
    assert env.recv("env:0", timeout_s=DEADLINE_S).wait() == "next"


def test_a_send_that_cannot_be_written_fails_at_once_and_the_next_one_arrives(boxes, monkeypatch):
    env, rollout = boxes
    env.send("first", "rollout:0", timeout_s=DEADLINE_S).wait()
    with monkeypatch.context() as patch:
        patch.setattr(outbox, "MailPut", fails)
        with pytest.raises(MemoryError):
            env.send("lost", "rollout:0").wait()
    env.send("next", "rollout:0", timeout_s=DEADLINE_S).wait()
    assert [rollout.recv("env:0", timeout_s=DEADLINE_S).wait() for _ in range(2)] == ["first", "next"]


def fails(*_args, **_options):
    raise MemoryError


def test_who_has_a_name_after_another_is_heard_also_where_the_other_is_not_known_to_be_gone(new_messenger):
    home = new_messenger("home")
    DirectoryServer(home)
    receiver, former, later, liar = (new_messenger(name) for name in ("env:0", "a:0", "a:0", "a:0"))
    boxes = {}
    for messenger, name in ((receiver, "env:0"), (former, "a:0"), (later, "a:0"), (liar, "a:0")):
        boxes[messenger] = Mailbox(messenger, DirectoryClient(messenger, home.endpoint), name)
    clients = {messenger: DirectoryClient(messenger, home.endpoint) for messenger in boxes}
    clients[receiver].register("env:0", receiver.endpoint)
    clients[former].register("a:0", former.endpoint)
    boxes[former].send("of the former", "env:0", timeout_s=DEADLINE_S).wait()
    assert boxes[receiver].recv("a:0", timeout_s=DEADLINE_S).wait() == "of the former"
    clients[former].unregister("a:0")  # the receiver is connected with it all the same
    clients[later].register("a:0", later.endpoint)
    sent = [boxes[later].send(number, "env:0", timeout_s=DEADLINE_S) for number in range(50)]
    assert [boxes[receiver].recv("a:0", timeout_s=DEADLINE_S).wait() for _ in sent] == list(range(50))
    for box in (boxes[liar], boxes[former]):
        with pytest.raises(CommError, match="says that it is 'a:0', which is another process"):
            box.send("not of a:0", "env:0", timeout_s=DEADLINE_S).wait()


@pytest.fixture
def successor_of_one_known(new_messenger):
    """Boxes of a receiver and of the successor of "a:0", of which that knows; its look-ups; what ends the one before.

    The directory is asked by the receiver, and answers when the test lets it.
    """
    home, receiver, former, later = (new_messenger(name) for name in ("home", "env:0", "a:0", "a:0"))
    lookups = queue.SimpleQueue()
    home.serve("directory", lookups.put, LookUp)
    box = Mailbox(receiver, DirectoryClient(receiver, home.endpoint), "env:0")
    finder = box._inbox.transfers.finder
    receiver.submit(lambda: finder.learn("a:0", former.endpoint))
    wait_until(lambda: finder.known("a:0"), receiver)
    successor = Mailbox(later, DirectoryClient(later, home.endpoint), "a:0")
    later.submit(lambda: successor._outbox.transfers.finder.learn("env:0", receiver.endpoint))

    def end_former():
        former.close()
        wait_until(lambda: not finder.known("a:0"), receiver)

    return box, successor, lookups, end_former


def test_a_sender_whose_name_cannot_be_looked_up_is_not_said_to_be_another_process(successor_of_one_known):
    _, successor, lookups, _ = successor_of_one_known
    sending = successor.send("unheard", "env:0", timeout_s=DEADLINE_S)
    lookups.get(timeout=DEADLINE_S).fail(CommTimeout("request", "directory", 30.0, "its answer"))
    with pytest.raises(CommError, match="'a:0' says that it is 'a:0', which could not be looked up: "):
        sending.wait(DEADLINE_S)


def test_a_sender_whose_name_cannot_be_looked_up_is_heard_where_the_one_before_it_is_gone(
    successor_of_one_known,
):
    box, successor, lookups, end_former = successor_of_one_known
    sending = successor.send("heard", "env:0", timeout_s=DEADLINE_S)
    asked = lookups.get(timeout=DEADLINE_S)
    end_former()
    asked.fail(CommTimeout("request", "directory", 30.0, "its answer"))
    sending.wait(DEADLINE_S)
    assert box.recv("a:0", timeout_s=DEADLINE_S).wait() == "heard"


def test_a_recv_whose_sender_is_found_late_says_that_it_had_been_gone(successor_of_one_known, monkeypatch):
    monkeypatch.setattr(transfer, "GRACE_S", DEADLINE_S)
    box, _, lookups, end_former = successor_of_one_known
    former = box._inbox.transfers.finder.known("a:0")
    receiving = box.recv("b:0", timeout_s=0.0)  # which the former is called, too
    operations = box._inbox.transfers.under_way
    wait_until(lambda: any(each._is_late for each in operations), box._inbox.messenger)
    end_former()
    lookups.get(timeout=DEADLINE_S).reply(Entry("b:0", former))
    with pytest.raises(PeerDied, match="b:0"):
        receiving.wait(DEADLINE_S)
