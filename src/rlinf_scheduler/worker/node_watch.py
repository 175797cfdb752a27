"""The home watches over the job's nodes: which are gone, since when and why; which are silent, or share no memory."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Protocol

from rlinf_scheduler.comm import Endpoint, Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.transport.peer_session import Loss
from rlinf_scheduler.errors import ClusterError, NodeLost
from rlinf_scheduler.events import NodeDraining, NodeResponsive, NodeUnresponsive, TransportFellBack
from rlinf_scheduler.events import NodeLost as NodeLostEvent
from rlinf_scheduler.host import protocol
from rlinf_scheduler.planning import Node, Topology
from rlinf_scheduler.ray_backend.lost_nodes import HEAD, NodesSeen
from rlinf_scheduler.session.membership import Death
from rlinf_scheduler.session.session import SERVICE_TIMEOUT_S, Session
from rlinf_scheduler.wording import clock_text

# How often Ray is asked which nodes it has, and the raylets whether they are there: it tells a driver nothing itself.
LOOK_S = 2.0
# The same, while something does not answer.
CLOSE_LOOK_S = 0.5
# Ray ends a process that has not reached its head for a minute, in the middle of whatever it does.
MAX_HEADLESS_S = 45.0
_log = logging.getLogger(__name__)
# Who was silent for so long, in so many looks, is told of: as soon as what is slow is told from what is not there.
TOLD_AFTER_S = 3.0
_TOLD_AFTER_LOOKS, _GIVEN_UP_AFTER_LOOKS = 2, 4
# Where nobody has listened for so long, on a machine that answers, nobody does: what was restarted would be back.
REFUSED_FOR_S = 5.0
_fallback_log = Reporter(__name__)


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
        on_draining: called on the I/O thread with each node that is to be given back.
        on_others: called on the I/O thread after each look, with Ray's nodes that are none of the job's.
    """

    def __init__(self, session: Session) -> None:
        self.states = NodeStates(_nodes_of(session))
        self.headless = ""
        self.on_lost: list[Callable[[str, str], None]] = []
        self.on_draining: list[Callable[[NodeDraining], None]] = []
        self.on_others: Callable[[Collection[str]], None] | None = None
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
            ClusterError: one is to be given back; or Ray's head does not answer, for which Ray would wait for a minute.
        """
        refusal = self.states.refusal(ranks)
        if refusal is not None:
            raise refusal
        for rank in self.states.draining.keys() & set(ranks):
            raise ClusterError(f"{self.states.draining[rank]}; nothing is started on it")
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
        for node_id, until in seen.draining.items():
            self._drain(node_id, until)
        if seen.others and self.on_others is not None:
            self.on_others(seen.others)
        for silence in self._silences.take(seen.answering, seen.silent, seen.refusing, began=began, now=now):
            (self._on_headless if silence.node_id == HEAD else self._on_silence)(silence)

    def _drain(self, node_id: str, until: float) -> None:
        rank = self.states.drain(node_id, until)
        if rank is None:
            return
        reason, node = self.states.draining[rank], self.states.node(rank)
        _log.warning("%s", reason)
        left_s = max(0.0, until - time.time()) if until else None
        event = NodeDraining(rank, node_id, node.ip, reason, left_s)
        self._session.bus.emit(event)
        for callback in list(self.on_draining):
            callback(event)

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


class NodeStates:
    """The nodes of a job, living and lost. The first word about a node counts.

    Args:
        nodes: in rank order.

    Attributes:
        lost: why each node that is gone is gone, by its rank.
        draining: of each node that is to be given back, that it is, and until when it lasts; by its rank.

    >>> states = NodeStates([Node("a" * 8, "10.0.0.5"), Node("b" * 8, "10.0.0.7")])
    >>> states.lose("b" * 8, "its raylet ended at 12:03:04")
    1
    >>> print(states.refusal([0, 1]))
    node 1 (10.0.0.7, bbbbbbbb) is gone: its raylet ended at 12:03:04
    >>> states.lose("b" * 8, "Ray says so") is None
    True
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = list(nodes)
        self.lost: dict[int, str] = {}
        self.draining: dict[int, str] = {}
        self._until: dict[int, float] = {}

    def drain(self, node_id: str, until: float) -> int | None:
        """A node is to be given back, at that time if it is not 0; its rank, or None as of `lose`.

        Of a node of which that is known an earlier time is news, and no other.
        """
        rank = self.rank_of(node_id)
        if rank is None or rank in self.lost:
            return None
        if rank in self.draining and (until or inf) >= (self._until[rank] or inf):
            return None
        self._until[rank] = until
        limit = f" by {clock_text(until)}" if until else ""
        self.draining[rank] = f"{self.title(rank)} is being drained: it is to be given back{limit}"
        return rank

    def lose(self, node_id: str, cause: str) -> int | None:
        """A node is gone; its rank, or None where that is no news, or no node of the job."""
        rank = self.rank_of(node_id)
        if rank is None or rank in self.lost:
            return None
        self.draining.pop(rank, None)
        self.lost[rank] = f"{self.title(rank)} is gone: {cause}"
        return rank

    def renew(self, nodes: Sequence[Node], alive: Collection[str]) -> None:
        """The nodes were probed anew: those that are `alive`, by their ids, are not lost any more."""
        same = {
            rank
            for rank, node in enumerate(nodes[: len(self._nodes)])
            if node.node_id == self._nodes[rank].node_id
        }
        self.draining = {rank: text for rank, text in self.draining.items() if rank in same}
        self._nodes = list(nodes)
        kept = {rank for rank, node in enumerate(nodes) if node.node_id not in alive}
        self.lost = {rank: cause for rank, cause in self.lost.items() if rank in kept}

    def rank_of(self, node_id: str) -> int | None:
        """Which node that is; None if it is none of the job's."""
        return next((rank for rank, node in enumerate(self._nodes) if node.node_id == node_id), None)

    def node(self, rank: int) -> Node:
        """What is known of it."""
        return self._nodes[rank]

    def title(self, rank: int) -> str:
        """How a node is called: by its rank, its address, which several may share, and the begin of its id."""
        node = self._nodes[rank]
        return f"node {rank} ({node.ip}, {node.node_id[:8]})"

    def living(self) -> list[str]:
        """The ids of the nodes that are not lost."""
        return [node.node_id for rank, node in enumerate(self._nodes) if rank not in self.lost]

    def usable(self) -> set[str]:
        """The ids of the nodes on which something can be started."""
        gone = self.unusable()
        return {node.node_id for rank, node in enumerate(self._nodes) if rank not in gone}

    def unusable(self) -> set[int]:
        """The ranks of the nodes on which nothing can be started."""
        return {*self.lost, *self.draining}

    def refusal(self, ranks: Collection[int]) -> NodeLost | None:
        """Why nothing can be started on these nodes; None if it can."""
        for rank in sorted(ranks):
            if rank in self.lost:
                return NodeLost(rank, self.lost[rank])
        return None


@dataclass(frozen=True, slots=True)
class NodeSilence:
    """A node does not answer those who look at it, or did not.

    Attributes:
        node_id: which.
        silent_s: for how long, in seconds.
        over: it answers again.
        too_long: it is given up.
        refused: its machine answers, and says that nobody listens there.
    """

    node_id: str
    silent_s: float
    over: bool = False
    too_long: bool = False
    refused: bool = False


@dataclass(slots=True)
class _Silent:
    since: float
    looks: int = 0
    told: bool = False
    # Since when each look was refused, and how many were; not counted before the last one that was not.
    refused_since: float = 0.0
    refusals: int = 0

    def count(self, began: float, *, refused: bool) -> None:
        self.looks += 1
        if refused:
            self.refused_since = self.refused_since if self.refusals else began
        self.refusals = self.refusals + 1 if refused else 0

    def too_long(self, limit_s: float, now: float) -> bool:
        is_silent = now - self.since >= limit_s and self.looks >= _GIVEN_UP_AFTER_LOOKS
        is_refused = now - self.refused_since >= min(REFUSED_FOR_S, limit_s)
        return is_silent or (is_refused and self.refusals >= _GIVEN_UP_AFTER_LOOKS)


class NodeSilences:
    """Which nodes do not answer, from one look to the next. Times are seconds of a monotonic clock.

    That this process itself stood still counts against nobody: silence is counted in looks, too.

    Args:
        give_up_after_s: for how long a node may be silent.
        limits_s: the same for some of them alone, by their ids.

    >>> silences = NodeSilences(30.0)
    >>> silences.take(["a"], ["b"], began=0.0, now=1.0)
    []
    >>> silences.take(["a"], ["b"], began=2.0, now=3.0)
    [NodeSilence(node_id='b', silent_s=3.0, over=False, too_long=False, refused=False)]
    >>> silences.take(["a", "b"], [], began=4.0, now=4.0)
    [NodeSilence(node_id='b', silent_s=4.0, over=True, too_long=False, refused=False)]
    """

    def __init__(self, give_up_after_s: float, limits_s: Mapping[str, float] = MappingProxyType({})) -> None:
        self._give_up_after_s = give_up_after_s
        self._limits_s = limits_s
        self._silent: dict[str, _Silent] = {}

    def take(
        self,
        answering: Collection[str],
        silent: Collection[str],
        refusing: Collection[str] = (),
        *,
        began: float,
        now: float,
    ) -> list[NodeSilence]:
        """What is to be told of a look: which nodes have answered, which have not until its end or were `refusing`."""
        found: list[NodeSilence] = []
        for node_id in answering:
            before = self._silent.pop(node_id, None)
            if before is not None and before.told:
                found.append(NodeSilence(node_id, now - before.since, over=True))
        for node_id in silent:
            state = self._silent.setdefault(node_id, _Silent(began))
            refused = node_id in refusing
            state.count(began, refused=refused)
            silent_s = now - state.since
            if state.too_long(self._limits_s.get(node_id, self._give_up_after_s), now):
                self.forget(node_id)
                found.append(NodeSilence(node_id, silent_s, too_long=True, refused=refused))
            elif silent_s >= TOLD_AFTER_S and state.looks >= _TOLD_AFTER_LOOKS and not state.told:
                state.told = True
                found.append(NodeSilence(node_id, silent_s, refused=refused))
        return found

    def forget(self, node_id: str) -> None:
        """It is gone."""
        self._silent.pop(node_id, None)

    def silent(self) -> list[str]:
        """Those that did not answer the last time; from any thread."""
        return list(self._silent)

    def silent_s(self, node_id: str, now: float) -> float:
        """For how long a node has been silent, if that was told; else 0."""
        state = self._silent.get(node_id)
        return now - state.since if state is not None and state.told else 0.0


class Fallbacks:
    """Processes that send to others of their machine by a slower way; a service of the home, on its I/O thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # By address: the first process there, and its machine as it sees it.
        self._first_at: dict[str, tuple[str, Endpoint]] = {}
        self._split: set[str] = set()
        session.messenger.serve(protocol.FELL_BACK, self._on_fell_back, protocol.FellBack)

    def note(self, ip: str, name: str, endpoint: Endpoint) -> None:
        """Compare a process with the first one at its address: they may be in different containers."""
        other, first = self._first_at.setdefault(ip, (name, endpoint))
        if endpoint.machine_id != first.machine_id and ip not in self._split:
            self._split.add(ip)
            self._tell(
                name,
                f"'{name}' and '{other}' run at {ip} and share neither files, network nor user: they are in "
                "different containers; what they send each other goes through the network, not through shared memory",
            )

    def _on_fell_back(self, notice: Request) -> None:
        fell: protocol.FellBack = notice.head
        self._tell(notice.peer_name, f"'{notice.peer_name}' does without shared memory: {fell.reason}")

    def _tell(self, process: str, reason: str) -> None:
        _fallback_log.warning("%s", reason)
        self._session.bus.emit(TransportFellBack(process, reason))
