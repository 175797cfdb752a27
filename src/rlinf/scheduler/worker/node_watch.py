"""The nodes of a job while it runs: who notices that one is gone tells the job's home, and that tells everybody."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from rlinf.scheduler.comm import Request
from rlinf.scheduler.comm.promise import Promise
from rlinf.scheduler.comm.transport.peer_session import Loss
from rlinf.scheduler.events import NodeLost as NodeLostEvent
from rlinf.scheduler.host import protocol
from rlinf.scheduler.planning import Node, Topology
from rlinf.scheduler.session import Session
from rlinf.scheduler.session.death_roll import Death
from rlinf.scheduler.session.session import SERVICE_TIMEOUT_S
from rlinf.scheduler.wording import clock_text
from rlinf.scheduler.worker.node_states import NodeStates

# How often Ray is asked which nodes it has: it tells a driver nothing by itself.
LOOK_S = 2.0
_log = logging.getLogger(__name__)


class NodeWatch:
    """What is known of the nodes; a service of the job's home. Changed on the I/O thread alone.

    Args:
        session: of the home; in other processes it hears nothing, and knows of no loss.

    Attributes:
        states: which nodes are lost.
        on_lost: called on the I/O thread with the id of each node that is lost, and why.
    """

    def __init__(self, session: Session) -> None:
        self.states = NodeStates(_nodes_of(session))
        self.on_lost: list[Callable[[str, str], None]] = []
        self._session = session
        # The processes that were launched on each node, as far as this one launched them.
        self._processes: dict[str, set[str]] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if session.home == session.messenger.endpoint:
            session.messenger.serve(protocol.NODE_GONE, self._on_node_gone, protocol.NodeGone)
            session.messenger.on_peer_lost(self._on_peer_lost)
            session.on_close(self._stop)

    def note(self, node_id: str, process_id: str) -> None:
        """A process runs on a node; on the I/O thread."""
        self._processes.setdefault(node_id, set()).add(process_id)

    def follow(self, look: Callable[[Sequence[str]], Mapping[str, str]]) -> None:
        """Look for lost nodes as long as the session lasts.

        Args:
            look: takes the ids of nodes, gives why some of them are gone; it may wait.
        """
        self._thread = threading.Thread(target=self._follow, args=(look,), name="rlinf-nodes", daemon=True)
        self._thread.start()

    def lose(self, node_id: str, cause: str) -> None:
        """A node is gone; from any thread."""
        self._session.messenger.submit(partial(self._lose, node_id, cause))

    def renew(self, nodes: Sequence[Node], alive: Collection[str]) -> None:
        """See `NodeStates.renew`; from any thread but the I/O thread, returns when it is done."""
        done: Promise[None] = Promise()

        def renew() -> None:
            self.states.renew(nodes, alive)
            done.set_result(None)

        self._session.messenger.submit(renew)
        done.wait(SERVICE_TIMEOUT_S)

    def check(self, ranks: Collection[int]) -> None:
        """Make sure that something can be started on these nodes.

        Raises:
            NodeLost: one is gone.
        """
        refusal = self.states.refusal(ranks)
        if refusal is not None:
            raise refusal

    def _on_node_gone(self, notice: Request) -> None:
        gone: protocol.NodeGone = notice.head
        self._lose(gone.node_id, f"{gone.cause} at {clock_text(gone.at)}")
        rank = self._rank_of(gone.node_id)
        if rank is not None:
            # Whoever launched it: it ends now.
            self._session.deaths.declare(Death(notice.peer_id, notice.peer_name, self.states.lost[rank]))

    def _on_peer_lost(self, process_id: str) -> None:
        node_id = next((each for each, ids in self._processes.items() if process_id in ids), None)
        if node_id is None:
            return
        others = self._processes[node_id]
        others.discard(process_id)
        lost = self._session.messenger.peers.lost.get(process_id)
        # One that can be reached shows that the node is there.
        if lost is None or not all(map(self._session.messenger.cut_off, others)):
            return
        if lost.loss is Loss.UNREACHABLE:
            self._lose(node_id, f"{lost.reason}, at {clock_text(time.time())}")

    def _rank_of(self, node_id: str) -> int | None:
        nodes = enumerate(_nodes_of(self._session))
        return next((rank for rank, node in nodes if node.node_id == node_id), None)

    def _lose(self, node_id: str, cause: str) -> None:
        rank = self.states.lose(node_id, cause)
        if rank is None:
            return
        reason = self.states.lost[rank]
        _log.warning("%s", reason)
        node = _nodes_of(self._session)[rank]
        self._session.bus.emit(NodeLostEvent(rank, node_id, node.ip, reason))
        for callback in list(self.on_lost):
            callback(node_id, reason)

    def _follow(self, look: Callable[[Sequence[str]], Mapping[str, str]]) -> None:
        while not self._over.wait(LOOK_S):
            try:
                gone = look(self.states.living())
            except Exception:  # noqa: BLE001 - whatever Ray raises when it does not answer, or ends
                _log.debug("Ray does not say which nodes there are", exc_info=True)
                continue
            for node_id, cause in gone.items():
                self.lose(node_id, f"{cause} at {clock_text(time.time())}")

    def _stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(LOOK_S)


def _nodes_of(session: Session) -> tuple[Node, ...]:
    topology = session.fact(Topology)
    return () if topology is None else topology.nodes
