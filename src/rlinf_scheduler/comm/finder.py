"""Names to endpoints, as long as their processes live: found once, in the order in which they were asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial

from rlinf_scheduler.comm.directory import DirectoryClient, Entry
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.promise import Promise


class Search:
    """One look-up of a name, with a deadline of its own.

    Args:
        found: called with the endpoint,
        failed: or with why there is none; once, on the I/O thread, unless the search was cancelled.
        returns: whether one that is gone, and whose name another process takes, is waited for.
    """

    __slots__ = ("failed", "found", "lookup", "returns")

    def __init__(
        self,
        found: Callable[[Endpoint], None],
        failed: Callable[[BaseException], None],
        *,
        returns: bool = False,
    ) -> None:
        self.found = found
        self.failed = failed
        self.returns = returns
        self.lookup: Promise[Entry] | None = None


class Finder:
    """Finds processes by name. Everything but `known` is on the I/O thread.

    Who was found is connected, so that its end is noticed, and has said whether it reads this process's shared memory.

    Args:
        directory: where names are looked up.
    """

    def __init__(self, messenger: Messenger, directory: DirectoryClient) -> None:
        self._messenger = messenger
        self._directory = directory
        self._known: dict[str, Endpoint] = {}
        self._names_of: defaultdict[str, set[str]] = defaultdict(set)
        self._searches: dict[str, list[Search]] = {}
        messenger.on_peer_lost(self._forget)

    def known(self, name: str) -> Endpoint | None:
        """Where the process of that name is, if that is known; from any thread."""
        return self._known.get(name)

    def find(self, name: str, timeout_s: float, search: Search) -> None:
        """Find a process within `timeout_s` seconds; searches of one name that succeed do so in order."""
        endpoint = self._known.get(name)
        if endpoint is not None:
            search.found(endpoint)
            return
        self._searches.setdefault(name, []).append(search)
        search.lookup = self._directory.lookup_async(name, timeout_s, returns=search.returns)
        search.lookup.add_done_callback(partial(self._looked_up, name, search))

    def look_up(self, name: str) -> Promise[Entry]:
        """Who has a name now, as the directory says, whoever is known here to have it."""
        return self._directory.lookup_async(name, 0.0)

    def learn(self, name: str, endpoint: Endpoint) -> None:
        """A process has that name, which another may have had."""
        self._resolve(name, endpoint)

    def cancel(self, name: str, search: Search) -> None:
        """Withdraw a search; nothing happens if it is over."""
        searches = self._searches.get(name, [])
        if search in searches:
            searches.remove(search)
            if not searches:
                del self._searches[name]
        if search.lookup is not None:
            search.lookup.cancel()

    def _looked_up(self, name: str, search: Search, lookup: Promise[Entry]) -> None:
        if lookup.cancelled():
            return
        error = lookup.exception()
        if error is not None:
            self.cancel(name, search)
            search.failed(error)
            return
        endpoint = lookup.result().endpoint
        self._messenger.payloads.when_ready(endpoint, lambda: self._resolve(name, endpoint))

    def _resolve(self, name: str, endpoint: Endpoint) -> None:
        # It may have gone since it was looked up; then it is reported as lost once more, after this.
        self._messenger.connect(endpoint)
        self._known[name] = endpoint
        self._names_of[endpoint.process_id].add(name)
        for search in self._searches.pop(name, ()):
            if search.lookup is not None:
                search.lookup.cancel()
            search.found(endpoint)

    def _forget(self, process_id: str) -> None:
        for name in self._names_of.pop(process_id, ()):
            endpoint = self._known.get(name)
            if endpoint is not None and endpoint.process_id == process_id:
                del self._known[name]
