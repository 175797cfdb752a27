"""What this process keeps of other machines' weights for the other processes of its machine.

    to a mirror, COPY [name, publisher's process id, version, reader's endpoint, why what was sent cannot be read]
        -> [HERE, version] + weights, or [GONE, version]

All but the one copy into shared memory happens on the I/O thread, so there are no locks.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future

from rlinf.scheduler.comm.codec import Encoded
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.framing import Buffer
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.parcels import Parcel
from rlinf.scheduler.comm.peer import Reply, Request
from rlinf.scheduler.weights.shelf import AT, DROP, HERE, MIRRORED, hand_over

COPY = "weights.copy"
GONE = AT + 1


class Mirrors:
    """Holds versions for their publishers, until these have newer ones or are gone.

    Args:
        messenger: this process's messenger.
    """

    def __init__(self, messenger: Messenger) -> None:
        self._messenger = messenger
        # Publisher and name -> version.
        self._held: dict[tuple[str, str], tuple[int, Parcel]] = {}
        messenger.serve(COPY, self._on_copy)
        messenger.serve(DROP, lambda request: self._drop(request.peer_id, *request.head))
        messenger.on_peer_lost(self._on_peer_lost)

    def take(self, name: str, publisher: Endpoint, version: int, frames: list[Buffer]) -> None:
        """Hold what came from another machine; it is written to shared memory once, beside the I/O thread."""

        def write() -> None:
            parcel = None
            try:
                encoded = Encoded(bytes(frames[0]), frames[1:])
                parcel = self._messenger.parcels.pack(encoded, None, snapshot=False)
            finally:
                self._messenger.submit(lambda: self._hold(name, publisher, version, parcel))

        threading.Thread(target=write, name="rlinf-weights-mirror", daemon=True).start()

    def _hold(self, name: str, publisher: Endpoint, version: int, parcel: Parcel | None) -> None:
        head = [name, version, None]
        newest, _ = self._held.get((publisher.process_id, name), (version, None))
        # A newer one may have been written faster.
        if parcel is not None and newest <= version:
            self._drop(publisher.process_id, name, version)
            self._held[publisher.process_id, name] = (version, parcel)
            head[2] = self._messenger.endpoint.to_wire()

        def answered(answer: Future[Reply]) -> None:
            if answer.exception() is not None or not answer.result().head:
                self._drop(publisher.process_id, name, version)

        self._messenger.request(publisher, MIRRORED, head).add_done_callback(answered)

    def _on_copy(self, request: Request) -> None:
        name, publisher_id, version, endpoint, unreadable = request.head
        if unreadable:
            self._messenger.parcels.distrust(request.peer_id, unreadable)
        reader = Endpoint.from_wire(endpoint)

        def answer() -> None:
            held_version, parcel = self._held.get((publisher_id, name), (None, None))
            if parcel is None or held_version != version:
                request.reply([GONE, version])
            else:
                hand_over(request, [HERE, version], parcel, reader)

        self._messenger.parcels.when_ready(reader, answer)

    def _drop(self, publisher_id: str, name: str, version: int) -> None:
        """Drop a version, or an older one."""
        held = self._held.get((publisher_id, name))
        if held is not None and held[0] <= version:
            del self._held[publisher_id, name]

    def _on_peer_lost(self, process_id: str) -> None:
        for publisher_id, name in list(self._held):
            if publisher_id == process_id:
                del self._held[publisher_id, name]
