"""The network between the nodes of a job: each pair is probed once, in the background, and what is slow is told."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from functools import partial

from rlinf_scheduler.comm import Endpoint, Request
from rlinf_scheduler.comm.link_probe import PROBE_TIMEOUT_S, TOKEN_BYTES, LinkSpeed
from rlinf_scheduler.comm.peer import RequestFuture
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.errors import CommError, CommTimeout, PeerDied
from rlinf_scheduler.events import LinkFailed, LinkSlow, TransportFellBack
from rlinf_scheduler.session.link_answers import (
    FELL_BACK,
    LINK,
    FellBack,
    LinkQuestion,
    OpenProbeDoor,
    ProbeLink,
    host_of,
)
from rlinf_scheduler.session.link_speeds import Pair, SlowLinks, rounds_of, slow_links
from rlinf_scheduler.session.session import Session
from rlinf_scheduler.wording import node_list

# A node is asked to probe, and answers, within it besides.
_ANSWER_S = 5.0
_log = Reporter(__name__)


class LinkWatch:
    """What is known of the links between nodes; a service of the job's home. On the I/O thread.

    Attributes:
        speeds: what was measured, by the ranks of the node that probed and of the other one.
    """

    def __init__(self, session: Session) -> None:
        self.speeds: dict[Pair, LinkSpeed] = {}
        self._session = session
        self._ends: dict[int, Endpoint] = {}
        # By address: the first process there, and which machine it believes to be on.
        self._first_at: dict[str, tuple[str, Endpoint]] = {}
        self._split: set[str] = set()
        self._probed: set[Pair] = set()
        self._rounds: deque[list[Pair]] = deque()
        self._open = 0
        self._suspects: set[Pair] = set()
        self._told: set[Pair] = set()
        self._is_home = session.home == session.messenger.endpoint
        if self._is_home:
            session.messenger.serve(FELL_BACK, self._on_fell_back, FellBack)

    def note(self, node_rank: int, ip: str, name: str, endpoint: Endpoint) -> None:
        """A process of a node can be reached; call `begin` when there is time to probe."""
        if endpoint.tcp_address:
            self._ends[node_rank] = endpoint
        other, first = self._first_at.setdefault(ip, (name, endpoint))
        if endpoint.machine_id != first.machine_id and ip not in self._split:
            self._split.add(ip)
            self._fell_back(
                name,
                f"'{name}' and '{other}' run at {ip} and share neither files, network nor user: they are in "
                "different containers; what they send each other goes through the network, not through shared memory",
            )

    def begin(self) -> None:
        """Probe the pairs of nodes that have not been probed yet, each node one at a time."""
        if self._is_home and self.is_idle and self._has_rounds():
            self._next_round()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being probed."""
        return not self._open and not self._rounds

    def _has_rounds(self) -> bool:
        """Whether there is something to probe; nodes may have come meanwhile."""
        if not self._rounds:
            # Nodes that share a machine have no link.
            one_a_machine = {end.machine_id: rank for rank, end in sorted(self._ends.items(), reverse=True)}
            rounds = rounds_of(sorted(one_a_machine.values()))
            left = ([pair for pair in pairs if pair not in self._probed] for pairs in rounds)
            self._rounds.extend(pairs for pairs in left if pairs)
        return bool(self._rounds)

    def _next_round(self) -> None:
        if not self._has_rounds():
            self._conclude()
            return
        pairs = self._rounds.popleft()
        self._open = len(pairs)
        for pair in pairs:
            self._probed.add(pair)
            _Probe(self._session, pair, self._ends, self._on_done).begin()

    def _on_done(self, pair: Pair, speed: LinkSpeed | None, problem: str) -> None:
        if speed is not None:
            before = self.speeds.get(pair)
            self.speeds[pair] = speed if before is None else _faster(before, speed)
        elif problem:
            _log.warning("node %d does not reach node %d: %s", *pair, problem)
            self._session.bus.emit(LinkFailed(*pair, problem))
        self._open -= 1
        if self._open == 0:
            self._next_round()

    def _conclude(self) -> None:
        """Tell what is slow, once it was so twice: a node may have been busy."""
        found = slow_links(self.bytes_per_s)
        again = {(min(link), max(link)) for each in found for link in _links_of(each)}
        fresh = again - self._suspects
        if fresh:
            self._suspects |= fresh
            self._rounds.extend([pair] for pair in sorted(fresh))
            self._next_round()
            return
        for slow in found:
            links = set(_links_of(slow))
            if links - self._told:
                self._told |= links
                self._tell(slow)

    @property
    def bytes_per_s(self) -> dict[Pair, float]:
        """How fast each link is, by the ranks of the nodes at which it begins and ends."""
        there = {pair: speed.sent_bytes_per_s for pair, speed in self.speeds.items()}
        return there | {
            (other, one): speed.received_bytes_per_s for (one, other), speed in self.speeds.items()
        }

    def _tell(self, slow: SlowLinks) -> None:
        peers = node_list(slow.peer_ranks)
        way = (
            f"from node {slow.node_rank} to {peers}"
            if slow.is_outgoing
            else f"from {peers} to node {slow.node_rank}"
        )
        text = (
            f"the way {way} carries {slow.bytes_per_s / 1e6:.0f} MB/s, others {slow.usual_bytes_per_s / 1e6:.0f}: "
            "is it the network that was meant? `rlinf node start --interface` chooses one"
        )
        _log.warning("%s", text)
        self._session.bus.emit(
            LinkSlow(
                slow.node_rank,
                slow.peer_ranks,
                slow.is_outgoing,
                slow.bytes_per_s,
                slow.usual_bytes_per_s,
                text,
            )
        )

    def _on_fell_back(self, notice: Request) -> None:
        fell: FellBack = notice.head
        self._fell_back(notice.peer_name, f"'{notice.peer_name}' does without shared memory: {fell.reason}")

    def _fell_back(self, process: str, reason: str) -> None:
        _log.warning("%s", reason)
        self._session.bus.emit(TransportFellBack(process, reason))


def _faster(one: LinkSpeed, other: LinkSpeed) -> LinkSpeed:
    return LinkSpeed(
        min(one.round_trip_s, other.round_trip_s),
        max(one.sent_bytes_per_s, other.sent_bytes_per_s),
        max(one.received_bytes_per_s, other.received_bytes_per_s),
    )


def _links_of(slow: SlowLinks) -> list[Pair]:
    if slow.is_outgoing:
        return [(slow.node_rank, peer) for peer in slow.peer_ranks]
    return [(peer, slow.node_rank) for peer in slow.peer_ranks]


class _Probe:
    """One probe: a door at one end, then a guest from the other."""

    def __init__(
        self,
        session: Session,
        pair: Pair,
        ends: dict[int, Endpoint],
        on_done: Callable[[Pair, LinkSpeed | None, str], None],
    ) -> None:
        self._session = session
        self._pair = pair
        self._one, self._other = (ends.get(rank) for rank in pair)
        self._on_done = on_done
        self._token = secrets.token_bytes(TOKEN_BYTES)

    def begin(self) -> None:
        """Ask for the door."""
        if self._one is None or self._other is None:
            self._on_done(self._pair, None, "")
            return
        asked = self._ask(self._other, OpenProbeDoor(self._token), int)
        asked.add_done_callback(lambda future: self._session.messenger.submit(partial(self._opened, future)))

    def _ask(self, end: Endpoint, question: LinkQuestion, answer: object) -> RequestFuture:
        timeout_s = PROBE_TIMEOUT_S + _ANSWER_S
        return self._session.messenger.request(end, LINK, question, reply_type=answer, timeout_s=timeout_s)

    def _opened(self, future: RequestFuture) -> None:
        error = future.exception()
        if error is not None or self._one is None or self._other is None:
            self._fail(error)
            return
        question = ProbeLink(host_of(self._other), future.result().head, self._token)
        asked = self._ask(self._one, question, LinkSpeed)
        asked.add_done_callback(
            lambda future: self._session.messenger.submit(partial(self._measured, future))
        )

    def _measured(self, future: RequestFuture) -> None:
        error = future.exception()
        if error is not None:
            self._fail(error)
        else:
            self._on_done(self._pair, future.result().head, "")

    def _fail(self, error: BaseException | None) -> None:
        # A process that has ended, or does not answer, is told of otherwise, and says nothing of the link.
        is_link = isinstance(error, CommError) and not isinstance(error, (PeerDied, CommTimeout))
        closed = bool(self._session.messenger.why_closed)
        self._on_done(self._pair, None, str(error) if is_link and not closed else "")
