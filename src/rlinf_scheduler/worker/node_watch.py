"""The nodes of a job while it runs: who notices that one is gone tells the job's home, and that tells everybody."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

from rlinf_scheduler.comm import Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.transport.peer_session import Loss
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.events import NodeLost as NodeLostEvent
from rlinf_scheduler.events import NodeResponsive, NodeUnresponsive
from rlinf_scheduler.host import protocol
from rlinf_scheduler.planning import Node, Topology
from rlinf_scheduler.ray_backend.lost_nodes import HEAD, NodesSeen
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.death_register import Death
from rlinf_scheduler.session.session import SERVICE_TIMEOUT_S
from rlinf_scheduler.wording import clock_text
from rlinf_scheduler.worker.node_states import NodeSilence, NodeSilences, NodeStates

# How often Ray is asked which nodes it has, and the raylets whether they are there: it tells a driver nothing itself.
LOOK_S = 2.0
# The same, while something does not answer.
CLOSE_LOOK_S = 0.5
# Ray ends a process that has not reached its head for a minute, in the middle of whatever it does.
MAX_HEADLESS_S = 45.0
_log = logging.getLogger(__name__)


class NodeLook(Protocol):
    """Looks at nodes: `NodeLooks`."""

    address: str

    def __call__(self, node_ids: Collection[str], silent: Collection[str]) -> NodesSeen:
        """See there."""


class NodeWatch:
    """What is known of the nodes; a service of the job's home. Changed on the I/O thread alone.

    Args:
        session: of the home; in other processes it hears nothing, and knows of no loss.

    Attributes:
        states: which nodes are lost.
        headless: that Ray's head does not answer, and since when; "" while it does. Requests to Ray wait then.
        on_lost: called on the I/O thread with the id of each node that is lost, and why.
    """

    def __init__(self, session: Session) -> None:
        self.states = NodeStates(_nodes_of(session))
        self.headless = ""
        self.on_lost: list[Callable[[str, str], None]] = []
        self._session = session
        limit_s = session.unreachable_after_s
        self._silences = NodeSilences(limit_s, {HEAD: min(limit_s, MAX_HEADLESS_S)})
        self._head = ""
        # The processes that were launched on each node, as far as this one launched them.
        self._processes: dict[str, set[str]] = {}
        self._node_of: dict[str, str] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if session.home == session.messenger.endpoint:
            session.messenger.serve(protocol.NODE_GONE, self._on_node_gone, protocol.NodeGone)
            session.messenger.on_peer_lost(self._on_peer_lost)
            session.on_close(self._stop)

    def note(self, node_id: str, process_id: str) -> None:
        """A process runs on a node; on the I/O thread."""
        self._processes.setdefault(node_id, set()).add(process_id)
        self._node_of[process_id] = node_id

    def follow(self, look: NodeLook) -> None:
        """Look for lost nodes as long as the session lasts.

        Args:
            look: looks at nodes, see `NodeLooks`.
        """
        self._head = look.address
        self._thread = threading.Thread(target=self._follow, args=(look,), name="rlinf-nodes", daemon=True)
        self._thread.start()

    def lose(self, node_id: str, cause: str) -> None:
        """A node is gone; from any thread."""
        self._session.messenger.submit(partial(self._lose, node_id, cause))

    def renew(self, nodes: Sequence[Node], alive: Collection[str]) -> None:
        """Take nodes that were probed anew; returns when it is done. From any thread but the I/O thread."""
        done: Promise[None] = Promise()

        def renew() -> None:
            self.states.renew(nodes, alive)
            for node_id in alive:
                self._silences.forget(node_id)
            done.set_result(None)

        self._session.messenger.submit(renew)
        done.wait(SERVICE_TIMEOUT_S)

    def check(self, ranks: Collection[int]) -> None:
        """Make sure that something can be started on these nodes.

        Raises:
            NodeLost: one is gone.
            ClusterError: Ray's head does not answer: a request to it would wait for a minute.
        """
        refusal = self.states.refusal(ranks)
        if refusal is not None:
            raise refusal
        if self.headless:
            raise ClusterError(f"{self.headless}: it can start nothing")

    def silence(self, rank: int) -> str:
        """That a node does not answer, and since when; "" if it does. From any thread."""
        silent_s = self._silences.silent_s(self.states.node(rank).node_id, time.monotonic())
        return _silent_text(silent_s) if silent_s else ""

    def _on_node_gone(self, notice: Request) -> None:
        gone: protocol.NodeGone = notice.head
        self._lose(gone.node_id, f"{gone.cause} at {clock_text(gone.at)}")
        rank = self.states.rank_of(gone.node_id)
        if rank is not None:
            # The process that tells of it ends now, too, whichever launch it is of.
            self._session.deaths.declare(Death(notice.peer_id, notice.peer_name, self.states.lost[rank]))

    def _on_peer_lost(self, process_id: str) -> None:
        node_id = self._node_of.pop(process_id, None)
        if node_id is None:
            return
        others = self._processes[node_id]
        others.discard(process_id)
        lost = self._session.messenger.peers.lost.get(process_id)
        # One that can be reached shows that the node is there.
        if lost is None or not all(map(self._session.messenger.peers.cut_off, others)):
            return
        if lost.loss is Loss.UNREACHABLE:
            self._lose(node_id, f"{lost.reason}, at {clock_text(time.time())}")

    def _lose(self, node_id: str, cause: str) -> None:
        rank = self.states.lose(node_id, cause)
        if rank is None:
            return
        reason = self.states.lost[rank]
        _log.warning("%s", reason)
        node = self.states.node(rank)
        self._silences.forget(node_id)
        self._session.bus.emit(NodeLostEvent(rank, node_id, node.ip, reason))
        for callback in list(self.on_lost):
            callback(node_id, reason)

    def _follow(self, look: NodeLook) -> None:
        while not self._over.wait(CLOSE_LOOK_S if self._silences.silent() else LOOK_S):
            began = time.monotonic()
            try:
                seen = look(self.states.living(), self._silences.silent())
            except Exception:  # noqa: BLE001 - whatever Ray raises when it does not answer, or ends
                _log.debug("Ray does not say which nodes there are", exc_info=True)
                continue
            self._session.messenger.submit(partial(self._on_look, seen, began, time.monotonic()))

    def _on_look(self, seen: NodesSeen, began: float, now: float) -> None:
        for node_id, cause in seen.gone.items():
            self._lose(node_id, f"{cause} at {clock_text(time.time())}")
        for silence in self._silences.take(seen.answering, seen.silent, seen.refusing, began=began, now=now):
            (self._on_headless if silence.node_id == HEAD else self._on_silence)(silence)

    def _on_silence(self, silence: NodeSilence) -> None:
        rank, text = self.states.rank_of(silence.node_id), _silent_text(silence.silent_s)
        if silence.too_long:
            self._lose(silence.node_id, f"{text}, at {clock_text(time.time())}")
        elif rank is not None:
            node = self.states.node(rank)
            if silence.over:
                _log.warning("%s answers again, after %.0f s", self.states.title(rank), silence.silent_s)
                event: NodeResponsive | NodeUnresponsive = NodeResponsive(
                    rank, node.node_id, node.ip, silence.silent_s
                )
            else:
                _log.warning("%s: %s", self.states.title(rank), text)
                event = NodeUnresponsive(rank, node.node_id, node.ip, text, silence.silent_s)
            self._session.bus.emit(event)

    def _on_headless(self, silence: NodeSilence) -> None:
        if silence.over:
            self.headless = ""
            _log.warning("Ray's head at %s answers again, after %.0f s", self._head, silence.silent_s)
            return
        text = f"Ray's head at {self._head} has not answered for {silence.silent_s:.0f} s"
        refused = " (nobody listens there any more)" if silence.refused else ""
        self.headless = f"{text}, at {clock_text(time.time())}{refused}"
        if not silence.too_long:
            _log.warning("%s", text)
        elif not self._session.closed:
            self._session.leave(f"{self.headless}: without it the job cannot go on")

    def _stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(LOOK_S)


def _nodes_of(session: Session) -> tuple[Node, ...]:
    topology = session.fact(Topology)
    return () if topology is None else topology.nodes


def _silent_text(silent_s: float) -> str:
    return f"its raylet has not answered for {silent_s:.0f} s"
