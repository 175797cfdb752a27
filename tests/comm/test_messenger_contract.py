"""What holds for every transport."""

import concurrent.futures
import queue
import signal
import threading

import numpy as np
import pytest

from rlinf_scheduler.comm import ClusterSecret, Messenger, framing
from rlinf_scheduler.errors import ChannelTimeout, CodecError, CommError, CommTimeout, NotServed, PeerDied
from rlinf_scheduler.host.ports import ReservedPort

DEADLINE_S = 60.0


def serve_echo(messenger):
    messenger.serve("echo", lambda request: request.reply(request.head, request.frames))


def test_a_request_brings_head_and_frames_and_back(pair):
    client, server = pair
    serve_echo(server)
    reply = client.request(server.endpoint, "echo", {"a": [1, None, "x"]}, [b"one", b"", b"three"])
    assert reply.result(DEADLINE_S).head == {"a": [1, None, "x"]}
    assert [bytes(frame) for frame in reply.result().frames] == [b"one", b"", b"three"]


def test_the_transport_of_each_peer_is_visible(pair, transport):
    client, server = pair
    serve_echo(server)
    ready = threading.Event()
    client.payloads.when_ready(server.endpoint, ready.set)
    assert ready.wait(DEADLINE_S)
    client.request(server.endpoint, "echo", None).result(DEADLINE_S)
    shown = client.transports()
    assert shown[server.endpoint.process_id] == {"unix": "unix+memory", "tcp": "tcp+tls"}[transport]
    assert shown[client.endpoint.process_id] == "self"


@pytest.mark.parametrize("size", [0, 1, 16_384, 65_536, 1 << 20, 20_000_003])
def test_frames_of_any_size_arrive_whole(pair, size):
    client, server = pair
    serve_echo(server)
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    reply = client.request(server.endpoint, "echo", None, [data.data, b"tail"]).result(DEADLINE_S)
    assert np.array_equal(np.frombuffer(reply.frames[0], np.uint8), data)
    assert bytes(reply.frames[1]) == b"tail"


def test_received_frames_are_writable_and_aligned(pair):
    client, server = pair
    serve_echo(server)
    frames = [b"x" * 10, b"y" * 100_000, b"z" * 300_000]
    for frame in client.request(server.endpoint, "echo", None, frames).result(DEADLINE_S).frames:
        array = np.frombuffer(frame, np.uint8)
        assert array.flags.writeable
        assert array.ctypes.data % 16 == 0


def test_messages_arrive_in_order_whatever_their_size(pair):
    client, server = pair
    seen, done = [], threading.Event()

    def note(request):
        seen.append(request.head)
        if request.head == 499:
            done.set()

    server.serve("note", note)
    for number in range(500):
        client.notify(server.endpoint, "note", number, [bytes(200_000 if number % 50 == 0 else number)])
    assert done.wait(DEADLINE_S)
    assert seen == list(range(500))


def test_answers_find_their_own_request(pair):
    client, server = pair
    held = []
    server.serve("hold", held.append)

    def release(request):
        request.reply(None)
        for waiting in reversed(held):
            waiting.reply(waiting.head)

    server.serve("release", release)
    answers = [client.request(server.endpoint, "hold", number) for number in range(100)]
    client.request(server.endpoint, "release", None).result(DEADLINE_S)
    assert [answer.result(DEADLINE_S).head for answer in answers] == list(range(100))


def test_both_sides_may_ask_each_other_at_once(pair):
    for messenger in pair:
        serve_echo(messenger)
    answers = [
        one.request(other.endpoint, "echo", number, [bytes(50_000)])
        for number in range(200)
        for one, other in (pair, pair[::-1])
    ]
    assert [answer.result(DEADLINE_S).head for answer in answers] == [n for n in range(200) for _ in pair]


def test_memory_changed_after_the_call_is_not_what_arrives(pair):
    client, server = pair
    serve_echo(server)
    data = bytearray(8_000_000)
    answers = []
    for number in range(1, 6):
        data[:] = bytes([number]) * len(data)
        answers.append(client.request(server.endpoint, "echo", None, [data]))
    data[:] = bytes(len(data))
    for number, answer in enumerate(answers, 1):
        frame = bytes(answer.result(DEADLINE_S).frames[0])
        assert frame == bytes([number]) * len(data)


def test_a_process_that_asks_itself_gets_memory_of_its_own(new_messenger):
    messenger = new_messenger("alone:0")
    serve_echo(messenger)
    data = bytearray(b"before")
    answer = messenger.request(messenger.endpoint, "echo", (1, 2), [data])
    data[:] = b"after!"
    assert bytes(answer.result(DEADLINE_S).frames[0]) == b"before"
    assert answer.result().head == [1, 2]


def test_a_raised_error_arrives_with_its_type_and_fields(pair):
    client, server = pair

    def fail(request):
        raise ChannelTimeout("replay", "default", "get", 1.5, "0 items")

    server.serve("fail", fail)
    with pytest.raises(ChannelTimeout, match=r"get not done after 1\.5 s") as caught:
        client.request(server.endpoint, "fail", None).result(DEADLINE_S)
    assert caught.value.queue_name == "default"


def test_an_error_that_cannot_be_pickled_arrives_as_text(pair):
    class LockedError(Exception):
        lock = threading.Lock()

    client, server = pair
    server.serve("fail", lambda request: request.fail(LockedError("out of luck")))
    with pytest.raises(CommError, match="LockedError: out of luck"):
        client.request(server.endpoint, "fail", None).result(DEADLINE_S)


def test_an_unknown_service_fails_and_names_those_that_are_there(pair):
    client, server = pair
    serve_echo(server)
    with pytest.raises(CommError, match="does not serve 'eco'; it serves arena, echo"):
        client.request(server.endpoint, "eco", None).result(DEADLINE_S)


def test_a_handler_that_fails_harms_no_other_request(pair):
    client, server = pair
    serve_echo(server)
    server.serve("fail", lambda request: request.head["missing"])
    broken = client.request(server.endpoint, "fail", {})
    whole = client.request(server.endpoint, "echo", 1)
    with pytest.raises(KeyError):
        broken.result(DEADLINE_S)
    assert whole.result(DEADLINE_S).head == 1


def test_an_answer_that_cannot_be_packed_fails_its_request(pair):
    client, server = pair
    server.serve("bad", lambda request: request.reply(object()))
    with pytest.raises(TypeError, match="object"):
        client.request(server.endpoint, "bad", None).result(DEADLINE_S)


def test_cancelling_a_request_tells_the_server(pair):
    client, server = pair
    arrived, told = threading.Event(), threading.Event()

    def wait(request):
        request.on_cancel(told.set)
        arrived.set()

    server.serve("wait", wait)
    answer = client.request(server.endpoint, "wait", None)
    assert arrived.wait(DEADLINE_S)
    assert answer.cancel()
    assert told.wait(DEADLINE_S)
    with pytest.raises(concurrent.futures.CancelledError):
        answer.result(0)


def test_a_request_past_its_deadline_fails_and_tells_the_server(pair):
    client, server = pair
    told = threading.Event()
    server.serve("wait", lambda request: request.on_cancel(told.set))
    with pytest.raises(CommTimeout, match="wait with 'server:0' not done after"):
        client.request(server.endpoint, "wait", None, timeout_s=0.2).result(DEADLINE_S)
    assert told.wait(DEADLINE_S)


def test_while_a_process_is_stopped_no_time_passes_for_what_it_has_asked(pair):
    client, server = pair
    questions, goes_on = queue.Queue(), threading.Event()
    server.serve("ask", questions.put)
    answer = client.request(server.endpoint, "ask", None, timeout_s=1)
    question = questions.get(timeout=DEADLINE_S)
    client.submit(lambda: goes_on.wait(DEADLINE_S))
    assert not answer.wait(3)
    goes_on.set()
    client.submit(lambda: client.submit(lambda: question.reply("here")))
    assert answer.result(DEADLINE_S).head == "here"


def test_a_server_learns_whether_its_answer_was_taken(pair):
    client, server = pair
    fates, both = {}, threading.Event()
    held = []

    def settle(name, taken):
        fates[name] = taken
        if len(fates) == 2:
            both.set()

    server.serve("take", lambda request: request.reply(1, on_confirmed=lambda taken: settle("taken", taken)))
    server.serve("hold", held.append)
    assert client.request(server.endpoint, "take", None).result(DEADLINE_S).head == 1
    # The answer is on its way when the request is cancelled.
    answer = client.request(server.endpoint, "hold", None)
    client.request(server.endpoint, "take", None).result(DEADLINE_S)
    server_has_answered, client_stands, client_may_go = (threading.Event() for _ in range(3))
    client.submit(lambda: (client_stands.set(), client_may_go.wait(DEADLINE_S)))
    assert client_stands.wait(DEADLINE_S)
    held[0].reply(2, on_confirmed=lambda taken: settle("cancelled", taken))
    server.submit(server_has_answered.set)
    assert server_has_answered.wait(DEADLINE_S)
    assert answer.cancel()
    client_may_go.set()
    assert both.wait(DEADLINE_S)
    assert fates == {"taken": True, "cancelled": False}


def test_a_closed_messenger_fails_what_waits_and_what_comes(pair):
    client, server = pair
    server.serve("never", lambda request: None)
    waiting = client.request(server.endpoint, "never", None)
    client.close()
    with pytest.raises(CommError, match="left the cluster"):
        waiting.result(DEADLINE_S)
    with pytest.raises(CommError, match="left the cluster"):
        client.request(server.endpoint, "never", None).result(DEADLINE_S)


def test_what_was_sent_before_close_still_arrives(pair):
    client, server = pair
    arrived = threading.Event()
    server.serve("note", lambda request: arrived.set() if request.head == 199 else None)
    for number in range(200):
        client.notify(server.endpoint, "note", number, [bytes(100_000)])
    client.close(DEADLINE_S)  # a busy machine is slower than the usual deadline of a close
    assert arrived.wait(DEADLINE_S)


def test_a_peer_that_closes_is_lost_to_the_other(pair):
    client, server = pair
    serve_echo(server)
    server.serve("never", lambda request: None)
    lost, noticed = [], threading.Event()
    client.on_peer_lost(lambda process_id: (lost.append(process_id), noticed.set()))
    waiting = client.request(server.endpoint, "never", None)
    client.request(server.endpoint, "echo", None).result(DEADLINE_S)
    server.close()
    with pytest.raises(PeerDied, match="server:0"):
        waiting.result(DEADLINE_S)
    assert noticed.wait(DEADLINE_S)
    assert lost == [server.endpoint.process_id]


def test_a_dead_endpoint_fails_at_once(pair):
    client, server = pair
    server.close()
    with pytest.raises(PeerDied):
        client.request(server.endpoint, "echo", None).result(DEADLINE_S)


def test_a_peer_elsewhere_without_tcp_is_an_error_that_says_so(new_messenger):
    client, server = new_messenger("client:0"), new_messenger("server:0", "elsewhere")
    with pytest.raises(PeerDied, match="another machine, and this process does not use TCP"):
        client.request(server.endpoint, "echo", None).result(DEADLINE_S)


def test_an_address_that_cannot_be_listened_on_is_an_error(secret):
    with pytest.raises(CommError, match=r"cannot listen on TCP at '203\.0\.113\.7'"):
        Messenger(secret, tcp=True, host="203.0.113.7")


def test_processes_listen_within_the_range_that_is_given_and_say_so_when_it_is_used_up(secret):
    kept = ReservedPort()  # so that no other test takes those beside it
    first = kept.port + 1
    ports = (first, first + 3)
    messengers = []
    try:
        with pytest.raises(
            CommError, match=f"ports {first}-{first + 2}: each is in use; .* widen cluster.network"
        ):
            messengers.extend(Messenger(secret, tcp=True, ports=ports) for _ in range(4))
        taken = [int(each.endpoint.tcp_address.rpartition(":")[2]) for each in messengers]
        assert len(taken) <= 3  # a stranger may have some
        assert set(taken) <= {first, first + 1, first + 2}
        assert messengers
    finally:
        for messenger in messengers:
            messenger.close()
        kept.release()


def test_one_thread_serves_any_number_of_peers_and_requests(new_messenger):
    before = threading.active_count()
    server = new_messenger("server:0")
    server.serve("never", lambda request: None)
    clients = [new_messenger(f"client:{rank}") for rank in range(20)]
    for client in clients:
        for _ in range(50):
            client.request(server.endpoint, "never", None)
    assert threading.active_count() < before + 21 + 10  # others may begin one, or end


def test_a_service_is_served_once(new_messenger):
    messenger = new_messenger("server:0")
    messenger.serve("echo", print)
    with pytest.raises(ValueError, match="'echo' is served already"):
        messenger.serve("echo", print)
    messenger.unserve("echo")
    messenger.serve("echo", print)


def test_close_may_be_called_twice_and_from_a_callback(secret):
    messenger = Messenger(secret)
    closed = threading.Event()
    messenger.submit(lambda: (messenger.close(), closed.set()))
    assert closed.wait(DEADLINE_S)
    messenger.close()


def test_a_secret_does_not_show_itself(secret):
    assert repr(secret) == str(secret) == "ClusterSecret(...)"
    assert secret != ClusterSecret.generate()


def test_a_head_that_is_too_large_fails_its_sender_and_not_the_connection(pair, monkeypatch):
    client, server = pair
    monkeypatch.setattr(framing, "MAX_CONTROL_BYTES", 10_000)
    server.serve("long", lambda request: request.reply("y" * request.head))
    for begin in (client.request, client.notify):
        with pytest.raises(CodecError, match=r"the head of a message to 'long' has 200.. bytes"):
            begin(server.endpoint, "long", "y" * 20_000)
    with pytest.raises(CodecError, match="the head of an answer has"):
        client.request(server.endpoint, "long", 20_000).result(DEADLINE_S)
    assert client.request(server.endpoint, "long", 10).result(DEADLINE_S).head == "y" * 10


@pytest.mark.parametrize(
    "head", ["y" * 20_000, "no text: \udcff", object()], ids=["large", "no text", "no data"]
)
def test_an_answer_that_cannot_be_packed_fails_its_request_whenever_it_is_given(pair, monkeypatch, head):
    client, server = pair
    monkeypatch.setattr(framing, "MAX_CONTROL_BYTES", 10_000)
    requests = queue.SimpleQueue()
    settled = []
    server.serve("later", requests.put)
    answer = client.request(server.endpoint, "later", None)
    assert requests.get(timeout=DEADLINE_S).reply(head, on_confirmed=settled.append) is False
    with pytest.raises((CodecError, UnicodeEncodeError, TypeError)):
        answer.result(DEADLINE_S)
    assert settled == []


@pytest.mark.parametrize("text", ["cannot read \udcff.bin", "y" * 1_000_000])
def test_any_text_of_an_error_arrives(pair, text):
    client, server = pair

    def fail(request):
        raise ValueError(text)

    server.serve("fail", fail)
    with pytest.raises(ValueError, match=r"cannot read|yyy") as caught:
        client.request(server.endpoint, "fail", None).result(DEADLINE_S)
    assert str(caught.value) == text


def test_two_that_dial_each_other_at_the_same_moment_both_get_their_answers(new_messenger):
    for round_ in range(20):
        both = [new_messenger(f"{side}:{round_}") for side in ("left", "right")]
        start = threading.Barrier(2)
        answers = []

        def ask(me, other, start=start, answers=answers):
            start.wait(DEADLINE_S)
            answers.extend(me.request(other.endpoint, "echo", number) for number in range(10))

        for messenger in both:
            serve_echo(messenger)
        threads = [threading.Thread(target=ask, args=pair) for pair in (both, both[::-1])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert sorted(answer.result(DEADLINE_S).head for answer in answers) == sorted([*range(10)] * 2)


@pytest.mark.interrupted
def test_a_signal_handler_that_asks_while_a_request_is_waited_for_gets_its_answer(pair):
    client, server = pair
    held = []
    server.serve("hold", held.append)
    serve_echo(server)
    answers = []

    def ask(_number, _frame):
        answers.append(client.request(server.endpoint, "echo", "within").result(DEADLINE_S).head)
        held[0].reply("held")

    before = signal.signal(signal.SIGUSR1, ask)
    try:
        waiting = client.request(server.endpoint, "hold", None)
        client.request(server.endpoint, "echo", None).result(DEADLINE_S)
        main = threading.main_thread().ident
        threading.Timer(0.02, signal.pthread_kill, [main, signal.SIGUSR1]).start()
        assert waiting.result(DEADLINE_S).head == "held"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert answers == ["within"]


def test_a_family_of_services_begins_with_the_first_request_for_one_of_them(pair):
    client, server = pair
    begun = []

    def begin():
        begun.append(threading.current_thread())
        for name in ("late.one", "late.two"):
            server.serve(name, lambda request: request.reply(request.head))

    server.serve_when_asked("late", begin)
    for name in ("late.two", "late.one"):
        assert client.request(server.endpoint, name, name).result(DEADLINE_S).head == name
    with pytest.raises(NotServed, match=r"late\.three"):
        client.request(server.endpoint, "late.three", None).result(DEADLINE_S)
    assert len(begun) == 1
    assert begun[0] is not threading.main_thread()


def test_a_family_of_services_that_cannot_begin_fails_the_request(pair):
    client, server = pair
    numbers = ["none", "7"]

    def begin():
        number = int(numbers.pop(0))
        server.serve("late.one", lambda request: request.reply(number))

    server.serve_when_asked("late", begin)
    with pytest.raises(NotServed, match=r"it serves .*late\.\*"):
        client.request(server.endpoint, "early", None).result(DEADLINE_S)
    with pytest.raises(ValueError, match="invalid literal"):
        client.request(server.endpoint, "late.one", None).result(DEADLINE_S)
    assert client.request(server.endpoint, "late.one", None).result(DEADLINE_S).head == 7
