"""Processes that are killed with -9 in the middle of things."""

import errno
import threading

import pytest

import comm_peers
from rlinf_scheduler.comm import DirectoryClient, DirectoryServer
from rlinf_scheduler.errors import CommError, PeerDied
from rlinf_scheduler.mailbox import Mailbox

DEADLINE_S = 60.0


@pytest.fixture
def messenger(transport, new_messenger):
    return new_messenger("driver", "here" if transport == "tcp" else None)


def test_a_killed_server_fails_every_pending_request(messenger, start_process):
    process, server = start_process(comm_peers.serve_echo)
    lost = threading.Event()
    messenger.on_peer_lost(lambda process_id: lost.set() if process_id == server.process_id else None)
    pending = [messenger.request(server, "never", None) for _ in range(100)]
    assert messenger.request(server, "echo", "alive").result(DEADLINE_S).head == "alive"
    process.kill()
    for answer in pending:
        with pytest.raises(PeerDied, match="server:0"):
            answer.result(DEADLINE_S)
    assert lost.wait(DEADLINE_S)
    with pytest.raises(PeerDied):
        messenger.request(server, "echo", None).result(DEADLINE_S)


def test_a_killed_client_withdraws_its_requests(messenger, start_process):
    asked, withdrawn = threading.Event(), threading.Event()

    def wait(request):
        request.on_cancel(withdrawn.set)
        asked.set()

    messenger.serve("wait", wait)
    process, _ = start_process(comm_peers.ask_and_wait, messenger.endpoint)
    assert asked.wait(DEADLINE_S)
    process.kill()
    assert withdrawn.wait(DEADLINE_S)


def test_a_killed_process_leaves_the_directory(messenger, start_process):
    DirectoryServer(messenger)
    names = DirectoryClient(messenger, messenger.endpoint)
    gone = threading.Event()
    messenger.on_peer_lost(lambda _process_id: gone.set())
    Mailbox(messenger, names, "rollout:0")
    names.register("rollout:0", messenger.endpoint)
    process, _ = start_process(comm_peers.send_then_stay, messenger.endpoint, [])
    assert [entry.name for entry in names.list()] == ["env:0", "rollout:0"]
    process.kill()
    assert gone.wait(DEADLINE_S)
    assert [entry.name for entry in names.list()] == ["rollout:0"]
    with pytest.raises(PeerDied, match="env:0"):
        names.lookup("env:0", DEADLINE_S)


def test_what_a_killed_sender_had_sent_can_still_be_received(messenger, start_process):
    DirectoryServer(messenger)
    names = DirectoryClient(messenger, messenger.endpoint)
    mailbox = Mailbox(messenger, names, "rollout:0")
    names.register("rollout:0", messenger.endpoint)
    gone = threading.Event()
    messenger.on_peer_lost(lambda _process_id: gone.set())
    process, _ = start_process(comm_peers.send_then_stay, messenger.endpoint, ["first", b"x" * 100_000])
    process.kill()
    assert gone.wait(DEADLINE_S)
    assert mailbox.recv("env:0", timeout_s=DEADLINE_S).wait() == "first"
    assert mailbox.recv("env:0", timeout_s=DEADLINE_S).wait() == b"x" * 100_000
    with pytest.raises(PeerDied, match="env:0"):
        mailbox.recv("env:0", timeout_s=DEADLINE_S).wait()


def test_a_killed_receiver_fails_the_sends_that_wait_for_room(messenger, start_process):
    DirectoryServer(messenger)
    names = DirectoryClient(messenger, messenger.endpoint)
    mailbox = Mailbox(messenger, names, "rollout:0")
    process, receiver = start_process(comm_peers.send_then_stay, messenger.endpoint, [], 10_000)
    first = mailbox.send(b"x" * 9_000, "env:0", timeout_s=DEADLINE_S)
    first.wait(DEADLINE_S)
    waiting = [mailbox.send(b"x" * 9_000, "env:0", timeout_s=DEADLINE_S) for _ in range(3)]
    # The receiver answers in order: it has read them by now, and has no room for any.
    with pytest.raises(CommError, match="does not serve 'nothing'"):
        messenger.request(receiver, "nothing", None).result(DEADLINE_S)
    assert not any(handle.done() for handle in waiting)
    process.kill()
    for handle in waiting:
        with pytest.raises(PeerDied, match="env:0"):
            handle.wait(DEADLINE_S)


def test_messages_of_several_threads_each_keep_their_order(messenger, start_process):
    num_messages = 2000
    seen = {first: [] for first in range(4)}
    all_there = threading.Event()

    def note(request):
        first, number = request.head
        seen[first].append(number)
        assert len(request.frames[0]) == number % 70_000
        if sum(map(len, seen.values())) == num_messages:
            all_there.set()

    messenger.serve("note", note)
    start_process(comm_peers.send_much, messenger.endpoint, num_messages)
    assert all_there.wait(DEADLINE_S)
    assert all(numbers == list(range(first, num_messages, 4)) for first, numbers in seen.items())


def test_last_words_arrive_when_both_have_dialled_each_other(new_messenger):
    for _ in range(20):
        one, other = new_messenger("one:0"), new_messenger("other:0")
        heard, lost = [], threading.Event()
        one.serve("note", lambda request, heard=heard: heard.append(request.head))
        other.serve("note", lambda request: None)
        one.on_peer_lost(lambda _process_id, lost=lost: lost.set())
        start = threading.Barrier(2)

        def talk(sender, receiver, start=start):
            start.wait(DEADLINE_S)
            for number in range(100):
                sender.notify(receiver.endpoint, "note", number, [bytes(5000)])

        thread = threading.Thread(target=talk, args=(one, other))
        thread.start()
        talk(other, one)
        other.close()
        thread.join(DEADLINE_S)
        assert lost.wait(DEADLINE_S)
        assert heard == list(range(100))
        one.close()


class RefusingSocket:
    """A socket whose kernel has no memory for what is sent."""

    def __init__(self, connection):
        self.connection = connection

    def send(self, _data):
        raise OSError(errno.ENOBUFS, "no buffer space")

    sendmsg = send

    def __getattr__(self, name):
        return getattr(self.connection, name)


def test_a_write_error_costs_the_connection_and_nothing_else(new_messenger):
    client, server = new_messenger("client:0"), new_messenger("server:0")
    server.serve("echo", lambda request: request.reply(request.head))
    assert client.request(server.endpoint, "echo", 1).result(DEADLINE_S).head == 1
    transport = client._peers.by_id[server.endpoint.process_id].transport
    broken = threading.Event()
    link = transport.link

    def break_it():
        link.connection = RefusingSocket(link.connection)
        broken.set()

    client.submit(break_it)
    assert broken.wait(DEADLINE_S)
    assert client.request(server.endpoint, "echo", 2).result(DEADLINE_S).head == 2
    assert transport.link is not link
