"""Deadlines for what Ray does when one is started or joined: Ray itself has its own, of minutes, or none."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ray._private import services
from ray._private.node import Node

from rlinf_scheduler.errors import ClusterError, ClusterTimeout
from rlinf_scheduler.ray_backend.authentication import wait_for_answer
from rlinf_scheduler.ray_backend.node.interfaces import LOOPBACK
from rlinf_scheduler.ray_backend.node.variables import set_meanwhile
from rlinf_scheduler.wording import seconds_text

# How long Ray waits until its own service has said where it listens; a whole number.
_SERVICE_VARIABLE, _SERVICE_S = "RAY_gcs_server_port_wait_time_s", 30
_ANY_PORT = 9


@contextmanager
def replaced(owner: Any, **attributes: object) -> Iterator[None]:
    """Have some attributes of a module or a class of Ray's be others inside."""
    before = {name: getattr(owner, name) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextmanager
def ended_within(timeout_s: float) -> Iterator[None]:
    """Have one step inside, a node started or a Ray joined, end by a deadline: `timeout_s` seconds from now.

    Raises:
        ClusterTimeout: Ray's own service, or the node, does not answer by then.
    """
    deadline = time.monotonic() + timeout_s
    use_service, find_node = Node._init_gcs_client, services.get_node

    def use_service_that_answers(node: Any) -> None:
        wait_for_answer(node.gcs_address, os.environ, deadline - time.monotonic())
        use_service(node)

    def find_node_in_time(*which: Any) -> Any:
        if time.monotonic() > deadline:
            raise ClusterTimeout(
                f"the node that was started has not joined its Ray after {seconds_text(timeout_s)}"
            )
        return find_node(*which)

    own_node = partial(services.get_node_to_connect_for_driver, timeout_seconds=max(1, math.ceil(timeout_s)))
    limit = {_SERVICE_VARIABLE: str(max(1, math.ceil(min(timeout_s, _SERVICE_S))))}
    with (
        set_meanwhile({} if _SERVICE_VARIABLE in os.environ else limit),
        replaced(Node, _init_gcs_client=use_service_that_answers),
        replaced(services, get_node=find_node_in_time, get_node_to_connect_for_driver=own_node),
    ):
        yield


def check_loopback() -> None:
    """Make sure that a Ray can listen at 127.0.0.1 and be reached there.

    Raises:
        ClusterError: the loopback is down.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.connect((LOOPBACK[0], _ANY_PORT))
        except OSError as error:
            raise ClusterError(
                f"a Ray of this machine alone listens at {LOOPBACK[0]}, which leads nowhere here ({error.strerror}): "
                "bring the loopback up (`ip link set lo up`)"
            ) from error
