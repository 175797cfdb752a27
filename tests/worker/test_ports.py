import socket

from rlinf.scheduler.host.ports import ReservedPort, _ephemeral_range


def test_two_reservations_never_share_a_port():
    held = [ReservedPort() for _ in range(20)]
    assert len({reserved.port for reserved in held}) == 20
    for reserved in held:
        reserved.release()


def test_a_released_port_can_be_had_again():
    first = ReservedPort()
    port = first.port
    first.release()
    second = ReservedPort()
    assert second.port == port
    second.release()


def test_a_reserved_port_can_be_bound_by_its_user():
    reserved = ReservedPort()
    with socket.socket() as server:
        server.bind(("127.0.0.1", reserved.port))
        assert server.getsockname()[1] == reserved.port
    reserved.release()


def test_a_port_that_a_stranger_listens_on_is_passed_over():
    probe = ReservedPort()
    port = probe.port
    probe.release()
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", port))
        stranger.listen()
        reserved = ReservedPort()
        assert reserved.port != port
        reserved.release()


def test_ports_lie_outside_the_range_of_outgoing_connections():
    low, high = _ephemeral_range()
    reserved = ReservedPort()
    assert not low <= reserved.port <= high
    reserved.release()
