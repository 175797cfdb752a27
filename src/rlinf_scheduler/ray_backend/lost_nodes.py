"""Which nodes are gone, or do not answer, as Ray says or as their raylets show: Ray itself takes a minute to notice."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import random
import select
import socket
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

import ray
from ray._private import state
from ray._raylet import Config  # type: ignore[attr-defined]  # made by Cython

from rlinf_scheduler.ray_backend.authentication import host_and_port
from rlinf_scheduler.ray_backend.gcs_question import GREETING
from rlinf_scheduler.wording import seconds_text

# So many raylets are looked at each time, and this long.
_MAX_LOOKS = 64
_LOOK_S = 1.0
# What shows that nobody listens there, on a machine that answers.
_REFUSED = errno.ECONNREFUSED
# Ray's own service, among the nodes that are looked at.
HEAD = "head"
_ENDED = "its raylet ended"
Address = tuple[str, int]
# Its own: what users draw after a seed does not depend on it.
_dice = random.Random()  # noqa: S311 - not for secrets
_log = logging.getLogger(__name__)


def check_patience(unreachable_after_s: float) -> None:
    """Warn where nodes are to be waited for that Ray itself does not wait for so long: it ends all that they run."""
    look_s = (Config.health_check_period_ms() + Config.health_check_timeout_ms()) / 1000
    limit_s = look_s * Config.health_check_failure_threshold()
    if unreachable_after_s <= limit_s:
        return
    threshold = math.ceil(unreachable_after_s / look_s)
    _log.warning(
        "cluster.unreachable_after_s is %s, but this Ray gives a node up that has not answered for %s; to wait longer, "
        "start its head with `rlinf node start --head -- --system-config='{\"health_check_failure_threshold\": %d}'`",
        seconds_text(unreachable_after_s),
        seconds_text(limit_s),
        threshold,
    )


@dataclass(frozen=True, slots=True)
class NodesSeen:
    """What one look at some of the nodes has shown, by Ray's ids.

    Attributes:
        answering: nodes whose raylets have answered; `HEAD` is among them if Ray's own service has.
        silent: those that have not, in a second.
        refusing: those of `silent` whose machines say that nobody listens there.
        draining: nodes that Ray has been asked to drain: until when, in seconds since 1970, or 0 for no limit. Nothing
            is started there any more; what runs is left alone, and the node ends with it.
        others: nodes that live, and are none of those that were to be looked at.
    """

    gone: Mapping[str, str]
    answering: Collection[str]
    silent: Collection[str]
    refusing: Collection[str] = ()
    draining: Mapping[str, float] = field(default_factory=dict)
    others: Collection[str] = ()


class NodeLooks:
    """Looks at the nodes of the Ray that this process is connected to, and at that Ray's own service.

    Attributes:
        raylets: where the raylets listen, as far as Ray has told.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.raylets: dict[str, Address] = {}
        self._asked: Future[_NodesOfRay] | None = None

    def __call__(self, node_ids: Collection[str], silent: Collection[str] = ()) -> NodesSeen:
        """Look once; it may take two seconds, and raises what Ray does.

        Args:
            node_ids: of many, some are looked at.
            silent: those that have not answered before: all of them are looked at.
        """
        some = _dice.sample(list(node_ids), min(len(node_ids), _MAX_LOOKS))
        wanted = {each: self.raylets[each] for each in {*some, *silent} if each in self.raylets}
        ended, answering = ask_raylets({**wanted, HEAD: host_and_port(self.address)}, _LOOK_S)
        silent_now = {*wanted, HEAD} - ended - answering
        by_sockets = dict.fromkeys(ended - {HEAD}, _ENDED)
        if HEAD not in answering:  # a request to Ray now waits for a minute
            return NodesSeen(by_sockets, answering, silent_now | {HEAD}, ended & {HEAD})
        told = self._ask_ray()
        if told is None:  # its head is busy, or gone since: the next look sees that by its socket
            return NodesSeen(by_sockets, answering, silent_now)
        records = {record["NodeID"]: record for record in told.records}
        # Those that are new are looked at the next time.
        self.raylets = {each: _raylet_of(record) for each, record in records.items()}
        gone = {each: _cause(records.get(each)) for each in node_ids if not _is_alive(records, each)}
        gone.update((each, _ENDED) for each in ended if each not in gone)
        others = {each for each in records if _is_alive(records, each)} - set(node_ids) - set(told.draining)
        return NodesSeen(gone, answering - set(gone), silent_now - set(gone), (), told.draining, others)

    def _ask_ray(self) -> _NodesOfRay | None:
        """Return what Ray says of its nodes; None if it does not answer now.

        On a thread of its own: a head that is gone by now is waited for by Ray, for a minute.
        """
        if self._asked is not None and not self._asked.done():
            return None
        # An answer that came too late for its look is none: nodes may have joined since.
        asked = self._asked = Future()
        threading.Thread(target=_answer, args=(asked,), name="rlinf-ray-nodes", daemon=True).start()
        return asked.result() if wait([asked], _LOOK_S).done else None


@dataclass(frozen=True, slots=True)
class _NodesOfRay:
    records: Sequence[Mapping[str, Any]]
    draining: Mapping[str, float]


def _answer(asked: Future[_NodesOfRay]) -> None:
    try:
        asked.set_result(_NodesOfRay(ray.nodes(), draining_nodes()))
    except BaseException as error:  # noqa: BLE001 - the caller gets it
        asked.set_exception(error)


def draining_nodes() -> dict[str, float]:
    """The nodes that Ray has been asked to drain, by their ids: until when, in seconds since 1970; 0: no limit."""
    return {node_id: limit_ms / 1000 for node_id, limit_ms in state.state.get_draining_nodes().items()}


def answering_nodes(records: Sequence[Mapping[str, Any]]) -> set[str]:
    """The ids of those nodes, of Ray's records, whose raylets answer."""
    return ask_raylets({record["NodeID"]: _raylet_of(record) for record in records}, _LOOK_S)[1]


def what_is_gone(asked: Sequence[Mapping[str, Any]], records: Iterable[Mapping[str, Any]]) -> str:
    """Which of the nodes that were asked are gone since, and why, or do not answer, in a clause; "" if none.

    Ray's processes know it before Ray's list of nodes does: of those that live there, the raylets are asked.
    """
    by_id = {record["NodeID"]: record for record in records}
    ended, answering = ask_raylets({each["NodeID"]: _raylet_of(each) for each in asked}, _LOOK_S)

    def state(node_id: str) -> str:
        if not _is_alive(by_id, node_id):
            return f"is gone: {_cause(by_id.get(node_id))}"
        if node_id in ended:
            return f"is gone: {_ENDED}"
        return "" if node_id in answering else "does not answer"

    states = [(each["NodeManagerAddress"], state(each["NodeID"])) for each in asked]
    return "; ".join(f"node {address} {it}" for address, it in states if it)


def num_lost_nodes(there: Collection[Mapping[str, Any]]) -> int:
    """How many nodes Ray has had besides those that are there."""
    return len(ray.nodes()) - len(there)


def _raylet_of(record: Mapping[str, Any]) -> Address:
    return record["NodeManagerAddress"], record["NodeManagerPort"]


def _is_alive(records: Mapping[str, Mapping[str, Any]], node_id: str) -> bool:
    return node_id in records and bool(records[node_id]["Alive"])


def _cause(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return "Ray does not know it any more"
    said = str(record.get("DeathReasonMessage") or "").strip().splitlines()
    if not said or "health check" in said[0]:
        return "its raylet stopped answering"
    return f"its raylet ended ({said[0]})"


def ask_raylets(raylets: Mapping[str, Address], timeout_s: float) -> tuple[set[str], set[str]]:
    """Which of some raylets have ended, and which answer; the others do not, or not in time.

    A kernel takes connections for a process that is stopped, too: only its own first word shows that a raylet runs.

    Args:
        raylets: where they listen, host and port, by any name.
    """
    ended: set[str] = set()
    answering: set[str] = set()
    deadline = time.monotonic() + timeout_s
    with contextlib.ExitStack() as stack:
        waiting: dict[int, tuple[str, socket.socket]] = {}
        poll = select.poll()
        for name, address in raylets.items():
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
            connection = stack.enter_context(socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            code = connection.connect_ex(address)
            if code == _REFUSED:
                ended.add(name)
            elif code in (0, errno.EINPROGRESS):
                waiting[connection.fileno()] = name, connection
                poll.register(connection, select.POLLOUT)
        while waiting and (ready := poll.poll(max(0.0, deadline - time.monotonic()) * 1000)):
            for descriptor, events in ready:
                name, connection = waiting[descriptor]
                if events == select.POLLOUT and _greet(connection):
                    poll.modify(connection, select.POLLIN)
                    continue
                poll.unregister(connection)
                del waiting[descriptor]
                code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code == _REFUSED:
                    ended.add(name)
                elif events & select.POLLIN:
                    answering.add(name)
    return ended, answering


def _greet(connection: socket.socket) -> bool:
    try:
        connection.send(GREETING)
    except OSError:
        return False
    return True
