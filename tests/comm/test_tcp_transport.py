from rlinf.scheduler.comm.tcp_link import WINDOW_BYTES

DEADLINE_S = 20.0


def test_data_that_arrives_before_we_have_dialled_back_does_not_stall_its_sender(new_messenger):
    client, server = new_messenger("client:0", "here"), new_messenger("server:0", "there")
    server.serve("size", lambda request: request.reply(len(request.frames[0])))
    dial = server._tcp._dial
    server._tcp._dial = lambda link: server.call_later(0.3, lambda: dial(link))
    size = 3 * WINDOW_BYTES
    assert client.request(server.endpoint, "size", None, [bytes(size)]).result(DEADLINE_S).head == size


def test_what_lies_in_zeromq_is_bounded_by_the_window(new_messenger):
    client, server = new_messenger("client:0", "here"), new_messenger("server:0", "there")
    server.serve("size", lambda request: request.reply(len(request.frames[0])))
    client.request(server.endpoint, "size", None, [b""]).result(DEADLINE_S)
    link = client._tcp.link_to(server.endpoint)
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
    link = client._tcp.link_to(server.endpoint)
    link.send([b"\xff" * 100], snapshot=True)
    assert "server:0" in str(pending.exception(DEADLINE_S))
    assert "bytes that are no message" in caplog.text
