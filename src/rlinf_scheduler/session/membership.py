"""Who is part of a job: which process is which rank, who says that it lives, and who is dead.

Gone is gone: a process that learns of a death, by a connection, Ray, a node or a silence, tells the job's home, and
that tells everybody. Who was declared dead is fenced: no process takes its connections any more, so that nothing it
still does has an effect when another has taken its place. It learns that when it tries, and leaves the job.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from rlinf_scheduler.comm import Endpoint, Messenger, Request
from rlinf_scheduler.comm.peers import LostPeer
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.transport.peer_session import Loss

# More than the ranks of a job, all of which may die at a time, and more than once.
MAX_DEATHS = 1 << 16
TELL = "job.deaths"
REPORT = "job.death_seen"
DECLARED_WITHIN_S = 30.0
# The home hears of most ends by itself; others report what they saw only if it has said nothing until then.
REPORT_AFTER_S = 1.0
# To tell of a death is to tell all that live: what dies soon after is told of together, and no more of the I/O thread's
# time than this share goes into it.
_TELL_EVERY_S = 0.05
_TELLING_SHARE = 0.1

BEAT = "job.beat"
# Every process says so often that its I/O thread runs, in seconds.
BEAT_S = 2.0
# A group has other ranks now: a service of every process, told by the home, and reported to it.
RESIZED = "job.resized"
HEARD_WITHIN_S = 5.0
_log = Reporter(__name__)


class GroupMembers(msgspec.Struct, frozen=True, array_like=True):
    """The ranks that a group has; it changes when the group is resized.

    Attributes:
        group: its name.
        ranks: their numbers, ascending; after ranks have left there are gaps.
        epoch: greater each time that the group was resized, or that a growth has failed.
        master_address: where the first of them is: MASTER_ADDR of a rendezvous of these ranks.
        master_port: its port there, another one in each epoch: MASTER_PORT.
        launched_ns: when the group was launched, or all of it anew; another one of that name is later.

    >>> members = GroupMembers("actor", (0, 2, 5), epoch=1)
    >>> members.world_size, members.place_of(5), 1 in members
    (3, 2, False)
    """

    group: str
    ranks: tuple[int, ...]
    epoch: int = 0
    master_address: str = ""
    master_port: int = 0
    launched_ns: int = 0

    @property
    def version(self) -> tuple[int, int]:
        """What is greater the newer these are."""
        return self.launched_ns, self.epoch

    def replaces(self, other: GroupMembers | None) -> bool:
        """Return whether they are newer ones of the same group, or the first."""
        return other is None or (self.group == other.group and self.version > other.version)

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return len(self.ranks)

    @property
    def in_words(self) -> str:
        """Which ranks there are, e.g. "ranks 0 to 3"."""
        first, last = self.ranks[0], self.ranks[-1]
        if len(self.ranks) == 1:
            return f"rank {first} only"
        if last - first + 1 == len(self.ranks):
            return f"ranks {first} to {last}"
        return f"ranks {', '.join(map(str, self.ranks))}"

    def place_of(self, rank: int) -> int:
        """Return a rank's place among them, from 0: its rank in collectives of these ranks.

        Raises:
            ValueError: it is none of them.
        """
        return self.ranks.index(rank)

    def environment_of(self, rank: int) -> dict[str, str]:
        """What `torch.distributed.init_process_group` reads in a rank's environment, to meet the others."""
        return {
            "RANK": str(self.place_of(rank)),
            "WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": str(self.master_port),
        }

    def __contains__(self, rank: object) -> bool:
        return rank in self.ranks


class GroupMembership(NamedTuple):
    """A process's place in a group.

    Attributes:
        members: the ranks that it has.
        launched_ns: when it was launched, in nanoseconds: another launch of that name is later.
        rank: this process's number.
    """

    members: GroupMembers
    launched_ns: int
    rank: int

    @property
    def group(self) -> str:
        """Its name."""
        return self.members.group


class Death(msgspec.Struct, frozen=True, array_like=True):
    """A process is dead, whatever it may still do.

    Attributes:
        name: how it was called, e.g. "rollout:3"; "" where that was not known.
        cause: why, or how that showed, and when.
        has_ended: it is known to have ended; its starter may know more about why.
    """

    process_id: str
    name: str
    cause: str
    has_ended: bool = False


class DeathRegister:
    """The dead of a job.

    Args:
        home: the process that keeps it; that one is not declared dead by anybody.

    >>> register = DeathRegister("driver")
    >>> register.declare(Death("a", "rollout:0", "killed"), by="b")
    True
    >>> register.declare(Death("b", "rollout:1", "unreachable"), by="a")  # who is dead says nothing
    False
    """

    def __init__(self, home: str) -> None:
        self._home = home
        self._dead: OrderedDict[str, Death] = OrderedDict()

    def declare(self, death: Death, by: str) -> bool:
        """Somebody says that a process is dead; whether it is from now on."""
        if death.process_id == self._home or death.process_id in self._dead or by in self._dead:
            return False
        self._dead[death.process_id] = death
        if len(self._dead) > MAX_DEATHS:
            self._dead.popitem(last=False)
        return True


class DeadProcesses(msgspec.Struct, frozen=True, array_like=True):
    """Processes that are dead."""

    deaths: list[Death]


class DeathNotices:
    """What one process hears and says of deaths. On the I/O thread, but for `declare`."""

    def __init__(self, messenger: Messenger, home: Endpoint) -> None:
        self._messenger = messenger
        self._peers = messenger.peers
        self._home = home
        self._own_id = messenger.endpoint.process_id
        self._register = DeathRegister(self._own_id) if home.process_id == self._own_id else None
        self._untold: list[Death] = []
        self._tell_again_at = 0.0
        if self._register is None:
            messenger.serve(TELL, self._on_told, DeadProcesses)
        else:
            messenger.serve(REPORT, self._on_report, DeadProcesses)
        messenger.on_peer_lost(self._on_peer_lost)

    def declare(self, death: Death) -> None:
        """Say that a process is dead; from any thread."""
        self._messenger.submit(lambda: self._declare(death, self._own_id))

    def declare_and_wait(self, death: Death, timeout_s: float = DECLARED_WITHIN_S) -> None:
        """Say that a process is dead, and wait until the home has told everybody; from any thread but the I/O thread.

        Raises:
            CommError: the home does not answer within `timeout_s` seconds.
        """
        # The home asks itself as it asks others.
        told = self._messenger.request(
            self._home, REPORT, DeadProcesses([death]), timeout_s=timeout_s, reply_type=None
        )
        told.result()
        fenced: Promise[None] = Promise()
        self._messenger.submit(lambda: self._fence_unless_told(death, fenced))
        fenced.wait(timeout_s)

    def _declare(self, death: Death, by: str) -> None:
        if self._register is None:
            self._messenger.notify(self._home, REPORT, DeadProcesses([death]))
        elif self._register.declare(death, by):
            # Who never reached it does not know its name.
            name = death.name or self._messenger.peer_name(death.process_id)
            death = msgspec.structs.replace(death, name=name)
            # One that has no name here had no part in the job yet, or none any more.
            tell = _log.debug if name == death.process_id else _log.info
            tell("'%s' is dead: %s", name, death.cause)
            # First: nothing that is told goes to the dead.
            self._fence(death)
            self._untold.append(death)
            if len(self._untold) == 1:
                left_s = max(0.0, self._tell_again_at - self._messenger.now())
                self._messenger.call_later(left_s, self._tell)

    def _tell(self) -> None:
        deaths, self._untold = self._untold, []
        if deaths:
            began = self._messenger.now()
            for transport in self._peers.transports():
                self._messenger.notify(transport.endpoint, TELL, DeadProcesses(deaths))
            ended = self._messenger.now()
            self._tell_again_at = ended + max(_TELL_EVERY_S, (ended - began) / _TELLING_SHARE)

    def _on_report(self, notice: Request) -> None:
        for death in notice.head.deaths:
            self._declare(death, notice.peer_id)
        # Who waits for the answer may let another take the place of the dead.
        self._tell()
        notice.reply(None)

    def _on_told(self, notice: Request) -> None:
        if notice.peer_id != self._home.process_id:
            _log.warning("'%s' says who is dead, and is not the job's home", notice.peer_name)
            return
        for death in notice.head.deaths:
            if death.process_id == self._own_id:
                self._peers.tell_fenced(death.cause)
            else:
                self._fence(death)

    def _fence_unless_told(self, death: Death, fenced: Promise[None]) -> None:
        if death.process_id not in self._peers.fenced:  # the home's word may have come before its answer
            self._fence(death)
        fenced.set_result(None)

    def _fence(self, death: Death) -> None:
        loss = Loss.ENDED if death.has_ended else Loss.DECLARED
        self._peers.fence(death.process_id, LostPeer(death.name, death.cause, loss))

    def _on_peer_lost(self, process_id: str) -> None:
        lost = self._peers.lost.get(process_id)
        if lost is None or process_id in self._peers.fenced or process_id == self._home.process_id:
            return
        if lost.loss not in (Loss.ENDED, Loss.UNREACHABLE):
            return
        at = time.strftime("%H:%M:%S")
        death = Death(process_id, lost.name, f"{lost.reason}, at {at}", lost.loss is Loss.ENDED)
        if self._register is not None:
            self._declare(death, self._own_id)
        else:
            self._messenger.call_later(REPORT_AFTER_S, lambda: self._report(death))

    def _report(self, death: Death) -> None:
        if death.process_id in self._peers.lost and death.process_id not in self._peers.fenced:
            self._declare(death, self._own_id)


class MembersNotices:
    """What one process hears and says of groups that are resized; the home tells all processes. On the I/O thread.

    Attributes:
        known: the ranks of the groups that have been resized since this process joined, by name.
        on_change: called with the new ranks of a group.
    """

    def __init__(self, messenger: Messenger, home: Endpoint) -> None:
        self.known: dict[str, GroupMembers] = {}
        self.on_change: list[Callable[[GroupMembers], None]] = []
        self._messenger = messenger
        self._home = home
        self._is_home = home.process_id == messenger.endpoint.process_id
        messenger.serve(RESIZED, self._on_notice, GroupMembers)

    def newest(self, members: GroupMembers) -> GroupMembers:
        """Return the ranks that a group has now, as far as this process knows; from any thread."""
        known = self.known.get(members.group)
        return members if known is None or members.replaces(known) else known

    def tell(self, members: GroupMembers) -> Promise[None]:
        """Say which ranks a group has now; from any thread.

        Returns:
            Done when all processes that were there have heard it, or have not answered for `HEARD_WITHIN_S` seconds.
        """
        heard: Promise[None] = Promise()
        asked = self._messenger.request(
            self._home, RESIZED, members, timeout_s=2 * HEARD_WITHIN_S, reply_type=None
        )
        asked.add_done_callback(lambda _: heard.set_result(None))
        return heard

    def _on_notice(self, request: Request) -> None:
        members: GroupMembers = request.head
        if members.replaces(self.known.get(members.group)):
            self.known[members.group] = members
            for callback in list(self.on_change):
                callback(members)
        if self._is_home:
            self._ask_peers(members).add_done_callback(lambda _: request.reply(None))
        else:
            request.reply(None)

    def catch_up(self, members: GroupMembers) -> Promise[None]:
        """Let come what others have sent to this process before they heard of these ranks; on the I/O thread.

        Returns:
            Done when it is here, or they have not answered for `HEARD_WITHIN_S` seconds.
        """
        return self._ask_peers(members)  # an answer is behind what was sent before it

    def _ask_peers(self, members: GroupMembers) -> Promise[None]:
        """Have the processes that this one is connected to hear of the ranks of a group, the home left out."""
        not_asked = {self._messenger.endpoint.process_id, self._home.process_id}
        peers = [transport.endpoint for transport in self._messenger.peers.transports()]
        others = [peer for peer in peers if peer.process_id not in not_asked]
        heard: Promise[None] = Promise()
        waits_for = {peer.process_id for peer in others}
        if not waits_for:
            heard.set_result(None)

        def on_heard(process_id: str, _: Promise[Any]) -> None:
            waits_for.discard(process_id)
            if not waits_for:
                heard.set_result(None)

        for peer in others:
            asked = self._messenger.request(peer, RESIZED, members, timeout_s=HEARD_WITHIN_S, reply_type=None)
            asked.add_done_callback(partial(on_heard, peer.process_id))
        return heard


class Draining:
    """Whether this process is to take no more work, as its rank leaves the group; a service of its session.

    What takes work in a loop (leases, requests, iterations of channels) ends then; what it has, it finishes.

    Attributes:
        began: done when that is so, with why.
        leaves: its rank is no member any more: known where it follows that, before it is to take no more.
    """

    def __init__(self, session: Any) -> None:
        self.began: Promise[str] = Promise()
        self.leaves = False
        self._now = session.messenger.now
        self._until = 0.0

    def begin(self, why: str, left_s: float) -> None:
        """Take no more work; the process is ended by force in so many seconds, if that was not to be sooner."""
        until = self._now() + left_s
        self._until = min(self._until, until) if self.began.done() else until
        self.leaves = True
        self.began.set_result(why)

    @property
    def left_s(self) -> float | None:
        """How many seconds are left until it is ended by force; None as long as it takes work."""
        return max(0.0, self._until - self._now()) if self.began.done() else None


class Beat(msgspec.Struct, frozen=True, array_like=True):
    """The sender's I/O thread runs.

    Attributes:
        give_up_after_s: after how many seconds without a beat it counts as dead; None: never.
    """

    give_up_after_s: float | None = None


class Heart:
    """What tells the job's home that this process's I/O thread runs."""

    def __init__(self, messenger: Messenger, home: Endpoint, give_up_after_s: float | None) -> None:
        self._messenger = messenger
        self._home = home
        self._beat_of = Beat(give_up_after_s)
        messenger.submit(self._beat)

    def _beat(self) -> None:
        if not self._messenger.why_closed:
            self._messenger.notify(self._home, BEAT, self._beat_of)
            self._messenger.call_later(BEAT_S, self._beat)
