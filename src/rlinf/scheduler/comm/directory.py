"""Names to endpoints: one process (the driver) keeps the directory, all others ask it.

A look-up of a name that is not there yet waits in the server, not in a loop of the client's. A name whose
process died is remembered as gone for a while, so that who looks it up afterwards is told at once.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.gone_names import GoneNames
from rlinf.scheduler.comm.loop import Timer
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.peer import Reply, Request, RequestFuture
from rlinf.scheduler.comm.promise import Promise
from rlinf.scheduler.comm.waits import NAME, Wait, awaited
from rlinf.scheduler.errors import CommTimeout, NameTaken, PeerDied, PeerNotFound
from rlinf.scheduler.wording import natural_order

SERVICE = "directory"
# Where nobody says how long to wait: a name that nobody has is not waited for without end.
DEFAULT_TIMEOUT_S = 1800.0
# How long the directory's own answer may take beyond the wait that was asked for.
ANSWER_TIMEOUT_S = 30.0
MAX_KNOWN = 5
# In what an entry says about itself: if its process dies, another one will take the name, or may. True, or the id of
# the process that sees to it: nobody does once that is gone.
RETURNS = "returns"
# In a listed entry, added: its process is gone, and no other one has taken the name yet.
AWAITED = "awaited"
# How the names of entries begin that are about groups, and how many ranks such a group has: "<group>:<rank>" is each.
GROUPS = "group/"
WORLD_SIZE = "world_size"


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """Who is registered under a name.

    Attributes:
        name: e.g. "rollout:3".
        endpoint: how to reach it.
        info: what it says about itself; small, msgpack-able.
    """

    name: str
    endpoint: Endpoint
    info: dict[str, Any] = {}


class _DirectoryQuestion(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """What a client asks the directory for."""


class Register(_DirectoryQuestion, frozen=True):
    """Put an entry in; `again`: its process may be there already; `claims`: further names, all or none."""

    entry: Entry
    again: bool
    claims: tuple[str, ...] = ()


class Unregister(_DirectoryQuestion, frozen=True):
    """Take the asker's name out."""

    name: str


class LookUp(_DirectoryQuestion, frozen=True):
    """The entry of a name, within `timeout_s` seconds; `returns`: also if its process is gone and another one comes."""

    name: str
    timeout_s: float
    returns: bool = True


class ListNames(_DirectoryQuestion, frozen=True):
    """The entries whose name begins with a prefix; `awaited`: those too whose process is gone and that return."""

    prefix: str
    awaited: bool = False


class Expect(_DirectoryQuestion, frozen=True):
    """Names that others will take."""

    names: list[str]


class GiveUp(_DirectoryQuestion, frozen=True):
    """A name that nobody will take, although that was expected."""

    name: str
    reason: str


@dataclass(slots=True)
class _Lookup:
    request: Request
    name: str
    started: float
    timer: Timer | None = None


class DirectoryServer:
    """Keeps the names of one cluster.

    Everything happens on the messenger's I/O thread, so there are no locks.

    Args:
        messenger: the process's messenger; the directory becomes one of its services.
    """

    def __init__(self, messenger: Messenger) -> None:
        self._messenger = messenger
        self._entries: dict[str, Entry] = {}
        # Of those that return, the ones that nobody has now.
        self._awaited: dict[str, Entry] = {}
        self._gone = GoneNames()
        self._lookups: dict[str, list[_Lookup]] = {}
        self._operations: dict[type[_DirectoryQuestion], Callable[..., None]] = {
            Register: self._register,
            Unregister: self._unregister,
            LookUp: self._lookup,
            ListNames: self._list,
            Expect: self._expect,
            GiveUp: self._give_up,
        }
        messenger.serve(SERVICE, self._handle, Register | Unregister | LookUp | ListNames | Expect | GiveUp)
        messenger.on_peer_lost(self._forget_process)

    def expect(self, names: str | Sequence[str]) -> None:
        """Let look-ups of `names` wait again: whoever had them is or will be gone, and others will come."""
        expected = _as_names(names)
        self._messenger.submit(lambda: self._gone.expect(expected))

    def _handle(self, request: Request) -> None:
        self._operations[type(request.head)](request, request.head)

    def _register(self, request: Request, ask: Register) -> None:
        entry = ask.entry
        entries = [entry, *(Entry(name, entry.endpoint) for name in ask.claims)]
        for wanted in entries:
            held = self._entries.get(wanted.name)
            is_own = held is not None and held.endpoint.process_id == entry.endpoint.process_id
            if held is not None and not (is_own and ask.again):
                raise NameTaken(wanted.name, self._messenger.peer_name(held.endpoint.process_id))
        # The connection is how we learn that the process has died; who registers for another has none yet.
        self._messenger.connect(entry.endpoint)
        for wanted in entries:
            self._entries[wanted.name] = wanted
            self._awaited.pop(wanted.name, None)
            self._gone.taken(wanted.name)
            for lookup in self._lookups.pop(wanted.name, ()):
                self._answer(lookup, wanted)
            if wanted.name.startswith(GROUPS):
                for lookup in [lookup for waiting in self._lookups.values() for lookup in waiting]:
                    self._fail_if_impossible(lookup)
        request.reply(None)

    def _unregister(self, request: Request, ask: Unregister) -> None:
        held = self._entries.get(ask.name)
        # Who leaves late must not take out the name's next owner.
        if held is not None and held.endpoint.process_id == request.peer_id:
            del self._entries[ask.name]
            self._gone.note(ask.name, "it left")
        request.reply(None)

    def _expect(self, request: Request, ask: Expect) -> None:
        self._gone.expect(ask.names)
        request.reply(None)

    def _give_up(self, request: Request, ask: GiveUp) -> None:
        entry = self._entries.get(ask.name)
        if entry is not None and RETURNS in entry.info:  # from now on: none will take it when it is gone
            info = {key: value for key, value in entry.info.items() if key != RETURNS}
            self._entries[ask.name] = Entry(ask.name, entry.endpoint, info)
        self._end_wait(ask.name, ask.reason)
        request.reply(None)

    def _end_wait(self, name: str, reason: str) -> None:
        """Nobody will take a name, although that was expected."""
        self._gone.give_up(name, reason)
        self._awaited.pop(name, None)
        for lookup in self._lookups.pop(name, ()):
            if lookup.timer is not None:
                lookup.timer.cancel()
            lookup.request.fail(PeerDied(name, reason))

    def _list(self, request: Request, ask: ListNames) -> None:
        entries = {**self._awaited, **self._entries} if ask.awaited else self._entries
        request.reply([entry for name, entry in sorted(entries.items()) if name.startswith(ask.prefix)])

    def _lookup(self, request: Request, ask: LookUp) -> None:
        name, timeout_s = ask.name, ask.timeout_s
        lookup = _Lookup(request, name, time.monotonic())
        entry = self._entries.get(name)
        gone = self._gone.reason(name)
        if entry is not None:
            self._answer(lookup, entry)
        elif gone is not None:
            request.fail(PeerDied(name, gone))
        elif name in self._awaited and not ask.returns:
            why = self._messenger.peers.why_lost(self._awaited[name].endpoint.process_id)
            why += "; another process may take its place, and is not waited for without wait_for_return=True"
            request.fail(PeerDied(name, why))
        elif self._fail_if_impossible(lookup):
            return
        elif timeout_s <= 0:
            self._expire(lookup)
        else:
            self._lookups.setdefault(name, []).append(lookup)
            lookup.timer = self._messenger.call_later(timeout_s, lambda: self._expire(lookup))
            request.on_cancel(lambda: self._drop(lookup))

    def _answer(self, lookup: _Lookup, entry: Entry) -> None:
        if lookup.timer is not None:
            lookup.timer.cancel()
        lookup.request.reply(entry)

    def _fail_if_impossible(self, lookup: _Lookup) -> bool:
        """Answer who waits for a rank that a group does not have, for it was launched with fewer; whether it was so."""
        group, _, rank = lookup.name.rpartition(":")
        entry = self._entries.get(f"{GROUPS}{group}")
        size = 0 if entry is None else entry.info.get(WORLD_SIZE, 0)
        if not size or rank in map(str, range(size)):
            return False
        ranks = f"ranks 0 to {size - 1}" if size > 1 else "rank 0 only"
        self._expire(lookup, f"group '{group}' has {ranks}")
        return True

    def _expire(self, lookup: _Lookup, why: str = "") -> None:
        if lookup.timer is not None:
            lookup.timer.cancel()
        self._drop(lookup)
        waited_s = time.monotonic() - lookup.started
        lookup.request.fail(PeerNotFound(lookup.name, waited_s, self._nearest(lookup.name), why))

    def _drop(self, lookup: _Lookup) -> None:
        if lookup.timer is not None:
            lookup.timer.cancel()
        waiting = self._lookups.get(lookup.name, [])
        if lookup in waiting:
            waiting.remove(lookup)
        if not waiting:
            self._lookups.pop(lookup.name, None)

    def _nearest(self, name: str) -> list[str]:
        # Names with a slash are of kinds of their own: weights, or the library's notes, such as which groups there are.
        kind = name.rpartition("/")[0]
        names = sorted(
            (known for known in self._entries if known.rpartition("/")[0] == kind), key=natural_order
        )
        nearest = difflib.get_close_matches(name, names, n=MAX_KNOWN, cutoff=0.5)
        others = (other for other in names if other not in nearest)
        return [*sorted(nearest, key=natural_order), *others][:MAX_KNOWN]

    def _forget_process(self, process_id: str) -> None:
        lost = [name for name, entry in self._entries.items() if entry.endpoint.process_id == process_id]
        for name in lost:
            entry = self._entries.pop(name)
            keeper = entry.info.get(RETURNS)
            if keeper and keeper not in self._messenger.peers.lost:
                self._awaited[name] = Entry(name, entry.endpoint, {**entry.info, AWAITED: True})
                self._gone.expect([name])
            elif self._gone.reason(name) is None:  # else it was given up before it was gone
                self._gone.note(name, self._messenger.peers.why_lost(process_id))
        for name in [name for name, entry in self._awaited.items() if entry.info.get(RETURNS) == process_id]:
            self._end_wait(name, "the process that would have started it again is gone")


class DirectoryClient:
    """Asks the cluster's directory; usable from any thread, the driver's own included.

    Args:
        messenger: this process's messenger.
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

    def register_async(self, entry: Entry, claims: Sequence[str] = ()) -> Promise[Reply]:
        """The future of registering an entry, and further names of its process; all of them or none."""
        return self._request(Register(entry, False, tuple(claims)))

    def unregister(self, name: str) -> None:
        """Take out `name`, which this process has; nothing happens if it is not there or another's."""
        self.unregister_async(name).result()

    def unregister_async(self, name: str) -> Promise[Reply]:
        """The future of `unregister`."""
        return self._request(Unregister(name))

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
        entries: list[Entry] = self._ask(ListNames(prefix, awaited), list[Entry]).head
        return entries

    def group_sizes(self) -> dict[str, int]:
        """How many ranks each group has, by its name, as soon as its launch begins."""
        # What holds a channel is launched as a group, but says no size.
        entries = [entry for entry in self.list(GROUPS) if WORLD_SIZE in entry.info]
        return {entry.name.removeprefix(GROUPS): entry.info[WORLD_SIZE] for entry in entries}

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
