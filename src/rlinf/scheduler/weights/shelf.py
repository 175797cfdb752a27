"""The weights that this process has published, and who reads them.

The publisher answers every reader of its own machine with the place in its shared memory. Of another machine it gives
the bytes to one reader, that machine's mirror, and sends the other readers there. A reader that asks for what
is not there yet is parked, once it has heard what is.

    to the publisher, FETCH [name, least version, last version heard of, reader's endpoint, why what was sent
        cannot be read ("" if it can), process and version that a mirror did not have any more]
        -> [IS, version]                nothing new enough yet, or a mirror is at work: ask again, and wait
        -> [HERE, version] + weights
        -> [MIRROR, version] + weights  and you are the mirror of your machine
        -> [AT, version, endpoint]      your machine's mirror has it
    to the publisher, MIRRORED [name, version, mirror's endpoint or None if it gives up] -> whether it is still needed
    to a mirror, DROP [name, version]: there is a newer one

All of it happens on the I/O thread, so there are no locks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.parcels import SHARED_BYTES, Parcel
from rlinf.scheduler.comm.peer import Request
from rlinf.scheduler.errors import WeightsError

FETCH = "weights.fetch"
MIRRORED = "weights.mirrored"
DROP = "weights.drop"

IS, HERE, MIRROR, AT = range(4)
NO_VERSION = -1
NOTHING_HEARD = -2


def hand_over(request: Request, head: Any, parcel: Parcel, reader: Endpoint) -> bool:
    """Answer with the parcel, which stays until the reader has it; False if nobody waits any more."""

    def settled(_taken: bool, _parcel: Parcel = parcel) -> None:
        """Only here to refer to the parcel until the reader has locked its block, or never will."""

    return request.reply(head, parcel.frames_for(reader), snapshot=False, settled=settled)


class _Reader:
    """A process that wants weights."""

    __slots__ = ("endpoint", "heard", "min_version", "request")

    def __init__(self, request: Request, endpoint: Endpoint, min_version: int, heard: int) -> None:
        self.request = request
        self.endpoint = endpoint
        self.min_version = min_version
        self.heard = heard


class _Mirror:
    """The process that has, or is about to have, the present version for its machine; then it has an endpoint."""

    __slots__ = ("endpoint", "process_id")

    def __init__(self, process_id: str) -> None:
        self.process_id = process_id
        self.endpoint: Endpoint | None = None


class Edition:
    """What is published under one name."""

    def __init__(self) -> None:
        self.version = NO_VERSION
        self.parcel: Parcel | None = None
        self.parked: list[_Reader] = []
        self.mirrors: dict[str, _Mirror] = {}  # by machine


class Shelf:
    """Holds the present version of everything that this process publishes.

    Args:
        messenger: this process's messenger.
    """

    def __init__(self, messenger: Messenger) -> None:
        self._messenger = messenger
        self._editions: dict[str, Edition] = {}
        messenger.serve(FETCH, self._on_fetch)
        messenger.serve(MIRRORED, self._on_mirrored)
        messenger.on_peer_lost(self._on_peer_lost)

    def open(self, name: str) -> Edition:
        """Expect versions of `name`: its readers wait from now on; from any thread."""
        return self._editions.setdefault(name, Edition())

    def withdraw(self, name: str) -> None:
        """Undo `open`, of a name that another process has; from any thread."""
        self._editions.pop(name, None)

    def version(self, name: str) -> int:
        """The present version; NO_VERSION if there is none."""
        edition = self._editions.get(name)
        return NO_VERSION if edition is None else edition.version

    def put(self, name: str, version: int, parcel: Parcel) -> None:
        """Make this the version that readers get from now on."""
        edition = self._editions[name]
        edition.parcel = parcel
        for mirror in edition.mirrors.values():
            self._dismiss(name, edition, mirror)
        edition.mirrors.clear()
        edition.version = version
        self._look_again(edition)

    # -- readers ---------------------------------------------------------------------------------

    def _on_fetch(self, request: Request) -> None:
        name, min_version, heard, endpoint, unreadable, (avoid, avoid_version) = request.head
        edition = self._editions.get(name)
        if edition is None:
            raise WeightsError(name, f"'{self._messenger.name}' does not publish them")
        reader = _Reader(request, Endpoint.from_wire(endpoint), min_version, heard)
        if unreadable:
            self._messenger.parcels.distrust(request.peer_id, unreadable)
        if avoid_version == edition.version:
            self._avoid(name, edition, avoid)
        request.on_cancel(lambda: self._forget(edition, reader))
        self._messenger.parcels.when_ready(reader.endpoint, lambda: self._serve(edition, reader))

    def _serve(self, edition: Edition, reader: _Reader) -> None:
        if reader.request.is_cancelled:
            return
        parcel = edition.parcel
        if parcel is None or edition.version < reader.min_version:
            self._park(edition, reader)
        elif self._is_elsewhere(reader) and parcel.size_bytes >= SHARED_BYTES:
            self._serve_elsewhere(edition, reader, parcel)
        else:
            hand_over(reader.request, [HERE, edition.version], parcel, reader.endpoint)

    def _serve_elsewhere(self, edition: Edition, reader: _Reader, parcel: Parcel) -> None:
        mirror = edition.mirrors.get(reader.endpoint.machine_id)
        if mirror is None:
            self._make_mirror(edition, reader, parcel)
        elif mirror.endpoint is None:
            self._park(edition, reader)
        else:
            reader.request.reply([AT, edition.version, mirror.endpoint.to_wire()])

    def _make_mirror(self, edition: Edition, reader: _Reader, parcel: Parcel) -> None:
        mirror = _Mirror(reader.endpoint.process_id)

        def settled(taken: bool, _parcel: Parcel = parcel) -> None:
            if not taken:
                self._drop_mirrors(edition, lambda other: other is mirror)

        edition.mirrors[reader.endpoint.machine_id] = mirror
        frames = parcel.frames_for(reader.endpoint)
        if not reader.request.reply([MIRROR, edition.version], frames, snapshot=False, settled=settled):
            settled(False)

    def _park(self, edition: Edition, reader: _Reader) -> None:
        # Whoever waits knows what it waits for, and can say so at its deadline.
        if reader.heard == edition.version:
            edition.parked.append(reader)
        else:
            reader.request.reply([IS, edition.version])

    def _look_again(self, edition: Edition) -> None:
        parked, edition.parked = edition.parked, []
        for reader in parked:
            self._serve(edition, reader)

    def _forget(self, edition: Edition, reader: _Reader) -> None:
        if reader in edition.parked:
            edition.parked.remove(reader)

    def _is_elsewhere(self, reader: _Reader) -> bool:
        return reader.endpoint.machine_id != self._messenger.endpoint.machine_id

    # -- mirrors ---------------------------------------------------------------------------------

    def _on_mirrored(self, request: Request) -> None:
        name, version, endpoint = request.head
        edition = self._editions.get(name)
        needed = False
        if edition is not None and edition.version == version:
            mirrors = [each for each in edition.mirrors.values() if each.process_id == request.peer_id]
            needed = endpoint is not None and bool(mirrors)
            for mirror in mirrors:
                mirror.endpoint = Endpoint.from_wire(endpoint) if needed else None
        request.reply(needed)
        if edition is None:
            return
        if needed:
            self._look_again(edition)
        elif edition.version == version:
            self._drop_mirrors(edition, lambda mirror: mirror.process_id == request.peer_id)

    def _avoid(self, name: str, edition: Edition, process_id: str) -> None:
        """A reader could not get the present version from that mirror."""
        for mirror in edition.mirrors.values():
            if mirror.process_id == process_id:
                self._dismiss(name, edition, mirror)
        self._drop_mirrors(edition, lambda mirror: mirror.process_id == process_id)

    def _dismiss(self, name: str, edition: Edition, mirror: _Mirror) -> None:
        # One that is still at work hears it as the answer when it is done.
        if mirror.endpoint is not None:
            self._messenger.notify(mirror.endpoint, DROP, [name, edition.version])

    def _drop_mirrors(self, edition: Edition, is_gone: Callable[[_Mirror], bool]) -> None:
        """Forget mirrors; the first reader of their machine that waits becomes the next one."""
        left = {machine: mirror for machine, mirror in edition.mirrors.items() if not is_gone(mirror)}
        if len(left) < len(edition.mirrors):
            edition.mirrors = left
            self._look_again(edition)

    def _on_peer_lost(self, process_id: str) -> None:
        for edition in list(self._editions.values()):
            self._drop_mirrors(edition, lambda mirror: mirror.process_id == process_id)
