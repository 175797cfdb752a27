"""A forked child gives up what it inherited."""

import os
import select
import signal
import threading

import pytest

import comm_peers
from rlinf_scheduler.comm import AsyncHandle, DirectoryClient, DirectoryServer, on_fork_in_child
from rlinf_scheduler.comm.reports import forget_io_thread, note_io_thread, on_io_thread
from rlinf_scheduler.comm.transport.peer_session import GRACE_S
from rlinf_scheduler.errors import CommError
from rlinf_scheduler.mailbox import Mailbox

DEADLINE_S = 60.0
# One that is only silent is dead after its grace: less than that shows that the connection was closed.
AT_ONCE_S = GRACE_S / 2


@pytest.fixture
def in_fork():
    """Runs a function in a forked child; what it returns, as text."""

    def run(function):
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(theirs, str(function()).encode())
            except Exception as error:  # noqa: BLE001 - the parent reads it
                os.write(theirs, repr(error).encode())
            finally:
                os._exit(0)
        os.close(theirs)
        try:
            assert select.select([ours], [], [], DEADLINE_S)[0], "the child hangs"
            return os.read(ours, 100_000).decode()
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(ours)

    return run


def error_of(function, *args):
    try:
        function(*args)
    except CommError as error:
        return str(error)
    return "no error"


def test_the_death_of_a_process_is_noticed_while_a_forked_child_lives(pair, start_process):
    server = pair[1]
    server.serve("wait", lambda request: None)
    gone = threading.Event()
    lost = []
    server.on_peer_lost(lambda process_id: (lost.append(process_id), gone.set()))
    process, (endpoint, child) = start_process(comm_peers.fork_and_wait, server.endpoint)
    process.kill()
    assert gone.wait(AT_ONCE_S)
    assert lost == [endpoint.process_id]
    os.kill(child, signal.SIGKILL)


def test_every_use_in_a_forked_child_is_an_error_that_says_so(pair, names, in_fork):
    client, server = pair
    server.serve("echo", lambda request: request.reply(request.head))
    server.serve("never", lambda request: None)
    mailbox = Mailbox(client, names[0], "client:0")
    assert client.request(server.endpoint, "echo", 1).result(DEADLINE_S).head == 1
    begun = AsyncHandle(client.request(server.endpoint, "never", 1), None, "a question")

    def use():
        uses = [
            lambda: client.request(server.endpoint, "echo", 2),
            lambda: client.notify(server.endpoint, "echo", 2),
            lambda: client.call_later(0, print),
            lambda: names[0].list(),
            lambda: mailbox.send(1, "client:0"),
            lambda: mailbox.recv("client:0"),
            begun.wait,
        ]
        client.close()
        return all("this is a forked child" in error_of(use) for use in uses)

    assert in_fork(use) == "True"
    assert client.request(server.endpoint, "echo", 3).result(DEADLINE_S).head == 3


def test_a_forked_child_may_join_as_a_process_of_its_own(new_messenger, in_fork):
    parent = new_messenger("driver")
    DirectoryServer(parent)
    DirectoryClient(parent, parent.endpoint).register("driver", parent.endpoint)

    def join():
        child = new_messenger("child:0")
        return DirectoryClient(child, parent.endpoint).lookup("driver", DEADLINE_S).name

    assert in_fork(join) == "driver"


def test_a_messenger_that_was_closed_before_the_fork_is_left_alone(new_messenger, in_fork):
    closed, living = new_messenger("one:0"), new_messenger("other:0")
    living.serve("echo", lambda request: request.reply(None))
    closed.request(living.endpoint, "echo", None).result(DEADLINE_S)
    closed.close()
    ours, theirs = os.pipe()  # they may have the numbers of the closed descriptors
    os.write(theirs, b"intact")
    assert in_fork(lambda: os.read(ours, 6)) == "b'intact'"
    assert "this is a forked child" in in_fork(lambda: error_of(living.connect, living.endpoint))
    os.close(ours)
    os.close(theirs)


def test_others_hear_of_the_fork_too(new_messenger, in_fork):
    new_messenger("driver")
    heard = []
    on_fork_in_child(note := lambda: heard.append(os.getpid()))
    on_fork_in_child(note)
    assert in_fork(lambda: heard == [os.getpid()]) == "True"
    assert heard == []


def test_no_thread_of_a_forked_child_is_taken_for_an_io_thread_of_its_parent(in_fork):
    note_io_thread(threading.get_ident())  # the child's has the same number
    try:
        assert in_fork(on_io_thread) == "False"
        assert on_io_thread()
    finally:
        forget_io_thread(threading.get_ident())
