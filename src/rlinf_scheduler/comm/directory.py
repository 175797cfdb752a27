"""Names to endpoints: one process (the driver) keeps the directory, all others ask it.

A look-up of a name that is not there yet waits in the server, not in a loop of the client's. A name whose
process died is remembered as gone for a while, so that who looks it up afterwards is told at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from rlinf_scheduler.addresses import is_below, parent_name, root_name
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.loop import Timer
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.names import GoneNames, Names, gone_with
from rlinf_scheduler.comm.peer import Reply, Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.requests import RequestFuture
from rlinf_scheduler.comm.waits import NAME, Wait, awaited
from rlinf_scheduler.errors import CommTimeout, NameTaken, PeerDied, PeerNotFound
from rlinf_scheduler.wording import ranges_text

SERVICE = "directory"
# Where nobody says how long to wait: a name that nobody has is not waited for without end.
DEFAULT_TIMEOUT_S = 1800.0
# How long the directory's own answer may take beyond the wait that was asked for.
ANSWER_TIMEOUT_S = 30.0
MAX_KNOWN = 5
# So many entries are listed in one answer; who wants more asks for those after them.
PAGE = 256
# In what an entry says about itself: if its process dies, another one will take the name, or may. True, or the id of
# the process that sees to it: nobody does once that is gone.
RETURNS = "returns"
# In what an entry of a worker below another says: the id of the process that is above it, and with which it ends.
PARENT = "parent"
# And its process's number on its machine.
PID = "pid"
# In a listed entry, added: its process is gone, and no other one has taken the name yet.
AWAITED = "awaited"
# How the names of entries begin that are about groups, and how many ranks such a group has: "<group>:<rank>" is each.
GROUPS = "group/"
WORLD_SIZE = "world_size"
# Their numbers, once a group has been resized, and how often it was.
RANKS = "ranks"
EPOCH = "epoch"


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """Who is registered under a name.

    Attributes:
        name: e.g. "rollout:3".
        info: what it says about itself; small, msgpack-able.
    """

    name: str
    endpoint: Endpoint
    info: dict[str, Any] = {}


class _DirectoryQuestion(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """What a client asks the directory for."""


class Register(_DirectoryQuestion, frozen=True):
    """Put an entry in; `again`: its process may be there already; `claims`: further names, all or none.

    `succeeds`: of a worker below another: the process that had its name has ended, noticed or not.
    """

    entry: Entry
    again: bool
    claims: tuple[str, ...] = ()
    succeeds: bool = False


class Unregister(_DirectoryQuestion, frozen=True):
    """Take the asker's name out."""

    name: str


class TakeOver(_DirectoryQuestion, frozen=True):
    """Let the asker have a name that another process has -> whether that had it."""

    name: str
    owner: str
    endpoint: Endpoint


class LookUp(_DirectoryQuestion, frozen=True):
    """The entry of a name, within `timeout_s` seconds; `returns`: also if its process is gone and another one comes."""

    name: str
    timeout_s: float
    returns: bool = True


class ListNames(_DirectoryQuestion, frozen=True):
    """The first `PAGE` entries after a name, of those whose name begins with a prefix.

    `awaited`: those too whose process is gone and that return.
    """

    prefix: str
    awaited: bool = False
    after: str = ""


class Expect(_DirectoryQuestion, frozen=True):
    """Names that others will take."""

    names: list[str]


class GiveUp(_DirectoryQuestion, frozen=True):
    """A name that nobody will take, although that was expected."""

    name: str
    reason: str


@dataclass(slots=True, eq=False)
class _Lookup:
    request: Request
    name: str
    started: float
    timer: Timer | None = None


class _Entries:
    """Entries by name, in order, and by a process that they belong to."""

    def __init__(self) -> None:
        self.by_name: dict[str, Entry] = {}
        self.names = Names()
        self._owners: dict[str, str] = {}
        self._of_owner: dict[str, dict[str, None]] = {}

    def set(self, entry: Entry, owner: str) -> None:
        """Put an entry in, or in the place of the one with its name."""
        self.pop(entry.name)
        self.by_name[entry.name] = entry
        self.names.add(entry.name)
        self._owners[entry.name] = owner
        self._of_owner.setdefault(owner, {})[entry.name] = None

    def pop(self, name: str) -> Entry | None:
        """Take an entry out, if it is there."""
        entry = self.by_name.pop(name, None)
        if entry is not None:
            self.names.discard(name)
            owner = self._owners.pop(name)
            self._of_owner[owner].pop(name)
            if not self._of_owner[owner]:
                del self._of_owner[owner]
        return entry

    def of_owner(self, owner: str) -> list[str]:
        """The names of a process's entries, in the order in which they came."""
        return list(self._of_owner.get(owner, ()))


class DirectoryServer:
    """Keeps the names of one cluster.

    Everything happens on the messenger's I/O thread, so there are no locks.

    Args:
        messenger: the process's messenger; the directory becomes one of its services.
        declare_dead: called with each entry whose process is gone although nobody may have noticed, and why; on the
            I/O thread.
        child_joined: called there with each entry of a worker below another.
    """

    def __init__(
        self,
        messenger: Messenger,
        declare_dead: Callable[[Entry, str], None] = lambda _entry, _why: None,
        child_joined: Callable[[Entry], None] = lambda _entry: None,
    ) -> None:
        self._messenger = messenger
        self._declare_dead = declare_dead
        self._child_joined = child_joined
        self._entries = _Entries()
        # Of those that return, the ones that nobody has now; they belong to who sees to it.
        self._awaited = _Entries()
        self._gone = GoneNames(messenger.now)
        # By the group in which a name would be a rank, or the rank below which it is, and by the name: those that wait,
        # in order.
        self._lookups: dict[str, dict[str, dict[_Lookup, None]]] = {}
        self._operations: dict[type[_DirectoryQuestion], Callable[..., None]] = {
            Register: self._register,
            Unregister: self._unregister,
            TakeOver: self._take_over,
            LookUp: self._lookup,
            ListNames: self._list,
            Expect: self._expect,
            GiveUp: self._give_up,
        }
        messenger.serve(
            SERVICE, self._handle, Register | Unregister | TakeOver | LookUp | ListNames | Expect | GiveUp
        )
        messenger.on_peer_lost(self._forget_process)

    def expect(self, names: str | Sequence[str]) -> None:
        """Let look-ups of `names` wait again: whoever had them is or will be gone, and others will come."""
        expected = _as_names(names)
        self._messenger.submit(lambda: self._gone.expect(expected))

    def _handle(self, request: Request) -> None:
        self._operations[type(request.head)](request, request.head)

    def _register(self, request: Request, ask: Register) -> None:
        entry = ask.entry
        parent = entry.info.get(PARENT)
        if parent is not None and parent in self._messenger.peers.lost:
            why = self._messenger.peers.why_lost(parent)
            raise PeerDied(entry.name, gone_with(parent_name(entry.name), why))
        entries = [entry, *(Entry(name, entry.endpoint) for name in ask.claims)]
        for wanted in entries:
            held = self._entries.by_name.get(wanted.name)
            is_own = held is not None and held.endpoint.process_id == entry.endpoint.process_id
            if held is not None and ask.succeeds and PARENT in held.info and not is_own:
                self._declare_dead(held, "its process has ended: another one has its number")
            elif held is not None and not (is_own and ask.again):
                raise NameTaken(wanted.name, self._messenger.peer_name(held.endpoint.process_id))
        # The connection is how we learn that the process has died; who registers for another has none yet.
        self._messenger.connect(entry.endpoint)
        for wanted in entries:
            self._entries.set(wanted, wanted.endpoint.process_id)
            self._awaited.pop(wanted.name)
            self._gone.taken(wanted.name)
            for lookup in self._no_longer_waiting(wanted.name):
                self._answer(lookup, wanted)
            if wanted.name.startswith(GROUPS):
                ranks = self._lookups.get(wanted.name.removeprefix(GROUPS), {})
                for lookup in [lookup for waiting in ranks.values() for lookup in waiting]:
                    self._fail_if_impossible(lookup)
        if parent is not None:
            self._child_joined(entry)
        request.reply(None)

    def _unregister(self, request: Request, ask: Unregister) -> None:
        held = self._entries.by_name.get(ask.name)
        # Who leaves late must not take out the name's next owner.
        if held is not None and held.endpoint.process_id == request.peer_id:
            self._entries.pop(ask.name)
            self._gone.note(ask.name, "it left")
        request.reply(None)

    def _take_over(self, request: Request, ask: TakeOver) -> None:
        held = self._entries.by_name.get(ask.name)
        had_it = held is not None and held.endpoint.process_id == ask.owner
        if held is not None and had_it:
            self._entries.set(Entry(ask.name, ask.endpoint, held.info), ask.endpoint.process_id)
        request.reply(had_it)

    def _expect(self, request: Request, ask: Expect) -> None:
        self._gone.expect(ask.names)
        request.reply(None)

    def _give_up(self, request: Request, ask: GiveUp) -> None:
        for name in [ask.name, *_below(self._entries, ask.name)]:
            entry = self._entries.by_name.get(name)
            if entry is not None and RETURNS in entry.info:  # from now on: none will take it when it is gone
                info = {key: value for key, value in entry.info.items() if key != RETURNS}
                self._entries.set(Entry(name, entry.endpoint, info), entry.endpoint.process_id)
        self._end_wait(ask.name, ask.reason)
        request.reply(None)

    def _end_wait(self, name: str, reason: str) -> None:
        """Nobody will take a name, although that was expected."""
        self._gone.give_up(name, reason)
        self._awaited.pop(name)
        self._fail_waiting([name], reason)
        self._fail_below(name, reason)
        for below in _below(self._awaited, name):
            self._end_wait(below, gone_with(name, reason))

    def _fail_waiting(self, names: Iterable[str], reason: str) -> None:
        """Nobody will take some names, for which look-ups wait."""
        for name in names:
            for lookup in self._no_longer_waiting(name):
                if lookup.timer is not None:
                    lookup.timer.cancel()
                lookup.request.fail(PeerDied(name, reason))

    def _fail_below(self, name: str, reason: str) -> None:
        """The process of a name is gone for good: nobody joins below it any more."""
        waiting = self._lookups.get(root_name(name), {})
        self._fail_waiting([each for each in waiting if is_below(each, name)], gone_with(name, reason))

    def _list(self, request: Request, ask: ListNames) -> None:
        listed = [self._entries, self._awaited] if ask.awaited else [self._entries]
        found = [
            each.by_name[name]
            for each in listed
            for name in islice(each.names.beginning_with(ask.prefix, ask.after), PAGE)
        ]
        request.reply(sorted(found, key=_name_of)[:PAGE])

    def _lookup(self, request: Request, ask: LookUp) -> None:
        name, timeout_s = ask.name, ask.timeout_s
        lookup = _Lookup(request, name, self._messenger.now())
        entry = self._entries.by_name.get(name)
        gone = self._gone.reason(name)
        if entry is not None:
            self._answer(lookup, entry)
        elif gone is not None:
            request.fail(PeerDied(name, gone))
        elif name in self._awaited.by_name and not ask.returns:
            why = self._messenger.peers.why_lost(self._awaited.by_name[name].endpoint.process_id)
            why += "; another process may take its place, and is not waited for without wait_for_return=True"
            request.fail(PeerDied(name, why))
        elif self._fail_if_impossible(lookup):
            return
        elif timeout_s <= 0:
            self._expire(lookup)
        else:
            self._lookups.setdefault(_group_of(name), {}).setdefault(name, {})[lookup] = None
            lookup.timer = self._messenger.call_later(timeout_s, lambda: self._expire(lookup))
            request.on_cancel(lambda: self._drop(lookup))

    def _answer(self, lookup: _Lookup, entry: Entry) -> None:
        if lookup.timer is not None:
            lookup.timer.cancel()
        lookup.request.reply(entry)

    def _fail_if_impossible(self, lookup: _Lookup) -> bool:
        """Answer who waits for a rank that a group does not have, for it was launched with fewer; whether it was so."""
        group, _, rank = root_name(lookup.name).rpartition(":")
        ranks = ranks_of(self._entries.by_name.get(f"{GROUPS}{group}"))
        if not ranks or self._gone.expects(lookup.name) or _is_one_of(ranks, rank):
            return False
        has = f"group '{group}' has {ranks_text(ranks)}"
        self._expire(
            lookup, f"{has}; rank {rank} has left" if rank.isdecimal() and int(rank) < ranks[-1] else has
        )
        return True

    def _expire(self, lookup: _Lookup, why: str = "") -> None:
        if lookup.timer is not None:
            lookup.timer.cancel()
        self._drop(lookup)
        waited_s = self._messenger.now() - lookup.started
        nearest = self._entries.names.nearest(lookup.name, MAX_KNOWN)
        lookup.request.fail(PeerNotFound(lookup.name, waited_s, nearest, why))

    def _drop(self, lookup: _Lookup) -> None:
        if lookup.timer is not None:
            lookup.timer.cancel()
        group = self._lookups.get(_group_of(lookup.name), {})
        waiting = group.get(lookup.name, {})
        waiting.pop(lookup, None)
        if not waiting:
            self._no_longer_waiting(lookup.name)

    def _no_longer_waiting(self, name: str) -> Iterable[_Lookup]:
        """Forget those who wait for a name."""
        group = self._lookups.get(_group_of(name), {})
        waiting = group.pop(name, {})
        if not group:
            self._lookups.pop(_group_of(name), None)
        return waiting

    def _forget_process(self, process_id: str) -> None:
        for name in self._entries.of_owner(process_id):
            entry = self._entries.by_name[name]
            self._entries.pop(name)
            keeper = entry.info.get(RETURNS)
            if keeper and keeper not in self._messenger.peers.lost:
                awaited = Entry(name, entry.endpoint, {**entry.info, AWAITED: True})
                self._awaited.set(awaited, str(keeper))
                self._gone.expect([name])
            elif self._gone.reason(name) is None:  # else it was given up before it was gone
                why = self._messenger.peers.why_lost(process_id)
                self._gone.note(name, why)
                self._fail_below(name, why)
            self._leave_orphans(name, process_id)
        for name in self._awaited.of_owner(process_id):
            self._end_wait(name, "the process that would have started it again is gone")

    def _leave_orphans(self, name: str, process_id: str) -> None:
        """Tell of those below a process that is gone: they end with it."""
        why = gone_with(name, self._messenger.peers.why_lost(process_id))
        for below in _below(self._entries, name):
            entry = self._entries.by_name[below]
            if entry.info.get(PARENT) == process_id:
                self._declare_dead(entry, why)


def _group_of(name: str) -> str:
    return root_name(name) if parent_name(name) else name.rpartition(":")[0]


def _below(entries: _Entries, name: str) -> list[str]:
    """The names of workers below the one of that name."""
    return [each for each in entries.names.beginning_with(f"{name}/") if is_below(each, name)]


def _name_of(entry: Entry) -> str:
    return entry.name


def ranks_of(entry: Entry | None) -> Sequence[int]:
    """The numbers of a group's ranks, in order; none where no entry says them."""
    info = {} if entry is None else entry.info
    ranks: Sequence[int] = info.get(RANKS) or range(info.get(WORLD_SIZE, 0))
    return ranks


def ranks_text(ranks: Sequence[int]) -> str:
    """Which ranks there are, in words.

    >>> ranks_text(range(4)), ranks_text([0]), ranks_text([0, 2, 3, 5])
    ('ranks 0 to 3', 'rank 0 only', 'ranks 0,2-3,5')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]} only"
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {ranges_text(ranks)}"


def _is_one_of(ranks: Sequence[int], rank: str) -> bool:
    """Whether that is how one of these numbers is written.

    >>> [_is_one_of(range(11), rank) for rank in ("0", "10", "11", "-1", "01", "x", "")]
    [True, True, False, False, False, False, False]
    """
    return (
        rank.isdecimal()
        and len(rank) <= len(str(ranks[-1]))
        and int(rank) in ranks
        and rank == str(int(rank))
    )


class DirectoryClient:
    """Asks the cluster's directory; usable from any thread, the driver's own included.

    Args:
        endpoint: the directory's process.
    """

    def __init__(self, messenger: Messenger, endpoint: Endpoint) -> None:
        self._messenger = messenger
        self._endpoint = endpoint

    def register(
        self, name: str, endpoint: Endpoint, info: dict[str, Any] | None = None, *, again: bool = False
    ) -> None:
        """Put `endpoint` under `name`, until `unregister` or the end of its process.

        Args:
            name: e.g. "rollout:3".
            endpoint: how to reach it.
            info: what it says about itself.
            again: the same process may have that name already: it may have been interrupted before it could note that.

        Raises:
            NameTaken: a living process has that name, be it the same one (without `again`).
            PeerDied: the directory's process is gone.
        """
        self._ask(Register(Entry(name, endpoint, info or {}), again))

    def register_async(
        self, entry: Entry, claims: Sequence[str] = (), *, succeeds: bool = False, again: bool = False
    ) -> Promise[Reply]:
        """The future of registering an entry, and further names of its process; all of them or none.

        Args:
            entry: see above.
            claims: those names.
            succeeds: of a worker below another: a process that has the name has ended, as is known here.
            again: as of `register`.
        """
        return self._request(Register(entry, again, tuple(claims), succeeds))

    def unregister(self, name: str) -> None:
        """Take out `name`, which this process has; nothing happens if it is not there or another's."""
        self.unregister_async(name).result()

    def unregister_async(self, name: str) -> Promise[Reply]:
        """The future of `unregister`."""
        return self._request(Unregister(name))

    def take_over_async(self, name: str, owner: str) -> Promise[Reply]:
        """The future of having a name that another process has, by its id; its head says whether that had it."""
        return self._request(TakeOver(name, owner, self._messenger.endpoint), bool)

    def expect(self, names: str | Sequence[str]) -> None:
        """Let look-ups of these names wait, although whoever had them is gone or about to go: others will come.

        One request, however many names. It holds until somebody registers under the name.
        """
        self._ask(Expect(_as_names(names)))

    def give_up_async(self, name: str, reason: str) -> Promise[Reply]:
        """The future of telling whoever looks a name up that nobody will take it any more."""
        return self._request(GiveUp(name, reason))

    def list(self, prefix: str = "", *, awaited: bool = False) -> list[Entry]:
        """The entries whose name begins with `prefix`, sorted by name.

        Args:
            prefix: of the names.
            awaited: also those whose process is gone, and that another one will take; they say AWAITED.
        """
        entries: list[Entry] = []
        while True:  # page by page, so that others have their turn
            after = entries[-1].name if entries else ""
            page: list[Entry] = self._ask(ListNames(prefix, awaited, after), list[Entry]).head
            entries += page
            if len(page) < PAGE:
                return entries

    def group_ranks(self) -> dict[str, Sequence[int]]:
        """The numbers of each group's ranks, by its name, as soon as its launch begins."""
        # What holds a channel is launched as a group, but says no size.
        entries = [entry for entry in self.list(GROUPS) if WORLD_SIZE in entry.info]
        return {entry.name.removeprefix(GROUPS): ranks_of(entry) for entry in entries}

    def group_sizes(self) -> dict[str, int]:
        """How many ranks each group has, by its name, as soon as its launch begins."""
        return {name: len(ranks) for name, ranks in self.group_ranks().items()}

    @awaited(lambda local: Wait(NAME, f"look-up of '{local['name']}'", subject=local["name"]))
    def lookup(self, name: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> Entry:
        """The entry of `name`, as soon as it is there.

        Raises:
            PeerNotFound: nobody registered within `timeout_s` seconds.
            PeerDied: the process that had the name is gone, or the directory's process is.
        """
        return self.lookup_async(name, timeout_s).result()

    def lookup_async(
        self, name: str, timeout_s: float = DEFAULT_TIMEOUT_S, *, returns: bool = True
    ) -> Promise[Entry]:
        """The future of `lookup`; cancelling it withdraws the question.

        Args:
            name: whose entry.
            timeout_s: as of `lookup`.
            returns: whether a process that is gone, and whose name another one takes, is waited for.
        """
        asked = self._request(LookUp(name, timeout_s, returns), Entry, timeout_s + ANSWER_TIMEOUT_S)
        found: Promise[Entry] = Promise(asked.cancel)

        def pass_on(reply: Promise[Reply]) -> None:
            if reply.cancelled():
                return
            error = reply.exception()
            if error is not None:
                found.set_exception(_as_not_found(error, name))
            else:
                found.set_result(reply.result().head)

        asked.add_done_callback(pass_on)
        return found

    def _ask(self, question: _DirectoryQuestion, reply_type: Any = None) -> Reply:
        return self._request(question, reply_type).result()

    def _request(
        self, question: _DirectoryQuestion, reply_type: Any = None, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> RequestFuture:
        return self._messenger.request(
            self._endpoint, SERVICE, question, timeout_s=timeout_s, reply_type=reply_type
        )


def _as_names(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _as_not_found(error: BaseException, name: str) -> BaseException:
    """A directory that does not answer at all has not found the name either."""
    if isinstance(error, CommTimeout):
        return PeerNotFound(name, error.waited_s)
    return error
