"""Who else reaches a Ray that this library starts for one machine: nobody, by network or by its folder."""

import ipaddress
import socket
import stat
from pathlib import Path

import pytest
import ray

from rlinf_scheduler.doctor.gathering import open_to_others
from rlinf_scheduler.ray_backend.authentication import host_and_port
from rlinf_scheduler.ray_backend.interfaces import network_interfaces


def outer_addresses():
    found = [ip for _, ip in network_interfaces()]
    return [ip for ip in found if not ipaddress.ip_address(ip).is_link_local]


@pytest.mark.ray
def test_simulated_nodes_listen_on_the_loopback_alone(ray_cluster, ray_address):
    ports = [host_and_port(ray_address)[1]]
    ports += [node[kind] for node in ray.nodes() for kind in ("NodeManagerPort", "ObjectManagerPort")]
    for port in ports:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
        for ip in outer_addresses():
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((ip, port), timeout=10)


@pytest.mark.ray
def test_no_other_user_can_come_to_rays_sockets_and_logs(ray_cluster):
    folder = Path(ray._private.worker._global_node.get_session_dir_path())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o777, (
        "as Ray makes it: if it does not, ours can be left out"
    )
    assert not open_to_others(folder)
    assert stat.S_IMODE(folder.parent.parent.stat().st_mode) == 0o700
