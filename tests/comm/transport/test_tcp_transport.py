import threading
from msgspec.structs import replace

import pytest

from rlinf.scheduler.comm.transport.tcp_link import WINDOW_BYTES
from rlinf.scheduler.errors import PeerDied

DEADLINE_S = 20.0


def link_between(messenger, other):
    return messenger._peers[other.endpoint.process_id].link


def test_what_lies_in_zeromq_is_bounded_by_the_window(new_messenger):
    client, server = new_messenger("client:0", "here"), new_messenger("server:0", "there")
    server.serve("size", lambda request: request.reply(len(request.frames[0])))
    client.request(server.endpoint, "size", None, [b""]).result(DEADLINE_S)
    link = link_between(client, server)
    seen = []
    send_part = client._tcp.send_part

    def watched(*args):
        seen.append(link._untaken_bytes)
        return send_part(*args)

    client._tcp.send_part = watched
    size = 5 * WINDOW_BYTES
    assert client.request(server.endpoint, "size", None, [bytes(size)]).result(DEADLINE_S).head == size
    assert max(seen) <= WINDOW_BYTES + (1 << 20)


def test_a_stream_that_is_no_stream_of_messages_loses_its_peer(new_messenger, caplog):
    client, server = new_messenger("client:0", "here"), new_messenger("server:0", "there")
    server.serve("never", lambda request: None)
    pending = client.request(server.endpoint, "never", None)
    client.request(server.endpoint, "unknown", None).exception(DEADLINE_S)
    link = link_between(client, server)
    link.send([b"\xff" * 100], snapshot=True)
    assert "server:0" in str(pending.exception(DEADLINE_S))
    assert "bytes that are no message" in caplog.text


def test_one_connection_serves_both_directions(new_messenger):
    client, server = new_messenger("client:0", "here"), new_messenger("server:0", "there")
    for messenger in (client, server):
        messenger.serve("echo", lambda request: request.reply(request.head))
    assert client.request(server.endpoint, "echo", 1).result(DEADLINE_S).head == 1
    assert server.request(client.endpoint, "echo", 2).result(DEADLINE_S).head == 2
    assert link_between(client, server).dialled
    assert not link_between(server, client).dialled


def test_two_that_dial_each_other_at_once_understand_each_other(new_messenger):
    pair = [new_messenger("client:0", "here"), new_messenger("server:0", "there")]
    both_dialled = threading.Barrier(2)
    for messenger in pair:
        messenger.serve("echo", lambda request: request.reply(request.head))
        dial = messenger._tcp._dial
        # Neither looks at what has come before both have dialled.
        messenger._tcp._dial = lambda link, dial=dial: (dial(link), both_dialled.wait(DEADLINE_S))
    answers = [
        asker.request(other.endpoint, "echo", number)
        for asker, other in zip(pair, reversed(pair), strict=True)
        for number in range(100)
    ]
    assert [answer.result(DEADLINE_S).head for answer in answers] == [*range(100)] * 2
    assert all(link_between(asker, other).dialled for asker, other in (pair, reversed(pair)))


def test_another_process_at_a_remembered_address_is_not_taken_for_the_one_that_was_there(new_messenger):
    client, server = new_messenger("client:0", "here"), new_messenger("server:0", "there")
    stale = replace(server.endpoint, process_id="of-somebody-who-is-gone")
    with pytest.raises(PeerDied, match="another process, 'server:0'"):
        client.request(stale, "echo", None).result(DEADLINE_S)


def test_a_process_that_lost_us_and_comes_back_is_served_anew(new_messenger):
    client, server = new_messenger("client:0", "here"), new_messenger("server:0", "there")
    server.serve("echo", lambda request: request.reply(request.head, request.frames))
    for _ in range(5):
        assert client.request(server.endpoint, "echo", 1).result(DEADLINE_S).head == 1
        lost = threading.Event()
        client.on_peer_lost(lambda _process_id, lost=lost: lost.set())
        link = link_between(client, server)
        client.submit(lambda link=link: client._tcp.lose(link, "as if the network had failed"))
        assert lost.wait(DEADLINE_S)
        big = client.request(server.endpoint, "echo", 2, [bytes(3 * WINDOW_BYTES)])
        assert len(big.result(DEADLINE_S).frames[0]) == 3 * WINDOW_BYTES
