"""What of Ray is replaced in this process: its deadlines, its token, how often it asks its head, what it prints.

Ray itself has deadlines of minutes, or none. Where its head is gone it asks anew as fast as a core can. And it hands
every line that any of its processes writes to one function of the driver's, which prints it: dumps of raylets and spare
workers would hide the line that matters. Lines of actors and tasks, users' own and ours, go on to it; the others go to
the logger `rlinf.ray`, at DEBUG. All of them lie in the `logs` folder of Ray's session too.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import ray._raylet
from ray._private import services
from ray._private import worker as ray_worker
from ray._private.node import Node
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

from rlinf_scheduler.errors import ClusterError, ClusterTimeout
from rlinf_scheduler.ray_backend.authentication import (
    MODE_VARIABLE,
    PATH_VARIABLE,
    TOKEN,
    TOKEN_VARIABLE,
    Access,
    own_token,
    wait_for_answer,
)
from rlinf_scheduler.ray_backend.interfaces import LOOPBACK
from rlinf_scheduler.ray_backend.variables import set_all, set_meanwhile
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


# -- its token ---------------------------------------------------------------------------------------


def use_fresh_token() -> Callable[[], None]:
    """Have this process and the Ray that it starts use a new random token; returns what restores the old state.

    Without it, any client of this machine's ports could run code on the nodes of a simulation. The token lies in
    the environment, which the nodes' processes inherit, and in no file. A mode "disabled" that the user has set stays.
    """
    if _is_turned_off():
        return lambda: None
    return _use({MODE_VARIABLE: TOKEN, TOKEN_VARIABLE: secrets.token_hex(32), PATH_VARIABLE: None})


def use_own_token() -> Callable[[], None]:
    """Have this process and the Ray that it starts use this user's token for it; returns what restores the old state.

    Ray by itself would put one into the user's home, for everybody to read, and turn authentication on with it for
    every Ray that this user starts from then on. A mode "disabled" that the user has set stays.
    """
    if _is_turned_off():
        return lambda: None
    return use_access(Access(TOKEN, own_token(os.environ)))


def use_access(access: Access) -> Callable[[], None]:
    """Have this process speak to a Ray as that wants it; returns what restores the old state."""
    settings = access.settings()
    return _use(settings) if settings else lambda: None


def _is_turned_off() -> bool:
    return os.environ.get(MODE_VARIABLE, TOKEN).strip().lower() != TOKEN


def _use(values: Mapping[str, str | None]) -> Callable[[], None]:
    before = _set(values)

    def restore() -> None:
        _set(before)

    return restore


def _set(values: Mapping[str, str | None]) -> dict[str, str | None]:
    before = set_all(values)
    # Ray reads the variables once: make it read them again, the mode before the token.
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    return before


# -- how often it asks -------------------------------------------------------------------------------


_raylet: Any = ray._raylet  # made by Cython
_PAUSE_S = 0.1


class _Unhurried:
    """After an answer that says nothing it pauses, until it is closed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._closed = threading.Event()

    def poll(self, *args: Any, **options: Any) -> Any:
        told = super().poll(*args, **options)  # type: ignore[misc]  # Ray's
        if not self._says_anything(told):
            self._closed.wait(_PAUSE_S)
        return told

    def close(self) -> None:
        self._closed.set()
        super().close()  # type: ignore[misc]  # Ray's

    def _says_anything(self, told: Any) -> bool:
        raise NotImplementedError


class _UnhurriedErrors(_Unhurried):
    """Errors of the job, each by itself."""

    def _says_anything(self, told: Any) -> bool:
        return told[1] is not None


class _UnhurriedLogs(_Unhurried):
    """Lines that the job's processes print, some at a time."""

    def _says_anything(self, told: Any) -> bool:
        return bool(told and told["lines"])


_UNHURRIED: dict[str, type[_Unhurried]] = {
    "GcsErrorSubscriber": _UnhurriedErrors,
    "GcsLogSubscriber": _UnhurriedLogs,
}


@contextmanager
def unhurried() -> Iterator[None]:
    """Have a Ray that is joined inside ask its head for no more than ten answers a second that say nothing."""
    # A Ray of another version may have other names for them; then it asks as it does.
    before = {name: getattr(_raylet, name) for name in _UNHURRIED if hasattr(_raylet, name)}
    for name, rays_own in before.items():
        setattr(_raylet, name, type(rays_own.__name__, (_UNHURRIED[name], rays_own), {}))
    try:
        yield
    finally:
        for name, rays_own in before.items():
            setattr(_raylet, name, rays_own)


# -- what it prints ----------------------------------------------------------------------------------


_NAME = "print_worker_logs"
_log = logging.getLogger("rlinf.ray")


def keep_off_terminal() -> Callable[[], None]:
    """Keep Ray's own messages off the terminal; gives what undoes it."""
    original = getattr(ray_worker, _NAME, None)
    if original is None:  # another version of Ray: it prints what it likes
        return _nothing

    def print_others(data: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        if is_of_ray(data):
            for line in data.get("lines", ()):
                _log.debug("%s: %s", data.get("pid"), line)
        else:
            original(data, *args, **kwargs)

    def undo() -> None:
        if getattr(ray_worker, _NAME) is print_others:
            setattr(ray_worker, _NAME, original)

    setattr(ray_worker, _NAME, print_others)
    return undo


def is_of_ray(data: Mapping[str, Any]) -> bool:
    """Whether lines are of a process of Ray's, or of a spare worker that has run nothing yet.

    >>> is_of_ray({"pid": "raylet", "lines": ["Raylet is terminated."]}), is_of_ray({"pid": 7, "actor_name": "Mine"})
    (True, False)
    """
    return not data.get("actor_name") and not data.get("task_name")


def _nothing() -> None:
    return None
