"""Many that connect to one process at once: nobody who can prove himself is turned away, however busy that is."""

import contextlib
import threading

import pytest

from crowds import new_crowd  # noqa: F401
from effort import tries
from rlinf_scheduler.comm import Messenger
from waits import wait_until

DEADLINE_S = 60.0
# As many as the home may be in the handshake with at a time, several times over. A real crowd where there is time.
DESCRIPTORS, MANY = (512, 400) if tries(1) == 1 else (None, 4000)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
def test_of_many_that_connect_at_once_to_a_home_that_computes_none_is_lost(new_crowd, tcp):  # noqa: F811
    crowd = new_crowd(computes=True, descriptors=DESCRIPTORS, tcp=tcp)
    _, lost = crowd.connect(MANY)
    assert lost == []
    home = crowd.home()
    assert home["peers"] == MANY
    # One of the crowd may itself be late; over TCP it is taken before it has said anything.
    assert tcp or len(home["refused"]) <= MANY // 10


def test_the_names_of_many_that_are_lost_at_once_are_gone(new_crowd):  # noqa: F811
    crowd = new_crowd()
    crowd.connect(400)
    crowd.register()
    crowd.leave()
    wait_until(lambda: not crowd.home()["peers"])
    assert crowd.home()["names"] == 0


def test_who_finds_the_queue_of_new_connections_full_waits_for_its_process_however_long_that_takes(secret):
    with contextlib.ExitStack() as stack:

        def messenger(name):
            made = Messenger(secret, name=name, unreachable_after_s=0.2)
            stack.callback(made.close)
            return made

        server, clients = messenger("server:0"), [messenger(f"client:{number}") for number in range(5)]
        server.serve("echo", lambda request: request.reply(request.head))
        free, stands = threading.Event(), threading.Event()
        stack.callback(free.set)
        server._peers.sockets.unix_listener._bound_socket.listen(0)
        server.submit(lambda: (stands.set(), free.wait(DEADLINE_S)))
        assert stands.wait(DEADLINE_S)
        answers = [client.request(server.endpoint, "echo", number) for number, client in enumerate(clients)]
        process_id = server.endpoint.process_id
        # Longer than one that is unreachable has.
        wait_until(lambda: all(" 0." not in client.condition(process_id) for client in clients))
        free.set()
        assert [answer.result(DEADLINE_S).head for answer in answers] == list(range(5))
