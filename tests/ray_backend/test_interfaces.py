"""Which address the other nodes are told."""

import pytest

from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.ray_backend import interfaces
from rlinf_scheduler.ray_backend.interfaces import own_ip


@pytest.fixture
def machine(monkeypatch):
    there = (("eth0", "10.0.0.5"), ("eth0", "fe80::1"), ("ib0", "fd00::5"), ("ib0", "fe80::2"))
    monkeypatch.setattr(interfaces, "network_interfaces", lambda: there)


def test_an_interface_stands_for_its_address_of_version_four_if_it_has_one(machine):
    assert own_ip("eth0", None) == "10.0.0.5"
    assert own_ip("ib0", None) == "fd00::5"
    assert own_ip("10.9.9.9", None) == "10.9.9.9"


def test_an_interface_that_is_not_there_is_told_with_those_that_are(machine):
    there = r"no interface 'eth1' here with an address that others can reach: eth0 10\.0\.0\.5, eth0 fe80"
    with pytest.raises(ClusterError, match=there):
        own_ip("eth1", None)


def test_a_node_that_reaches_the_head_from_the_loopback_asks_for_an_interface(machine):
    with pytest.raises(ClusterError, match="other nodes cannot reach"):
        own_ip(None, "127.0.0.2:6379")


def test_where_no_network_can_be_chosen_the_user_is_asked(machine, monkeypatch):
    monkeypatch.setattr(interfaces, "_source_towards", lambda place: None)
    with pytest.raises(ClusterError, match=r"\(--interface\): eth0 10\.0\.0\.5"):
        own_ip(None, None)
    monkeypatch.setattr(interfaces, "network_interfaces", lambda: (("eth0", "10.0.0.5"), ("eth0", "fe80::1")))
    assert own_ip(None, None) == "10.0.0.5"


def test_a_machine_in_a_network_that_is_asked_about_finds_its_way_out_by_another_one(machine, monkeypatch):
    broadcast = "192.0.2.255"
    monkeypatch.setattr(interfaces, "_source_towards", lambda to: None if to[0] == broadcast else "192.0.2.7")
    assert own_ip(None, None) == "192.0.2.7"


def test_this_machine_alone_can_be_a_head_and_nothing_else(machine):
    assert own_ip("127.0.0.1", None) == "127.0.0.1"
    with pytest.raises(ClusterError, match="other nodes cannot reach"):
        own_ip("127.0.0.1", "10.0.0.1:6379")
