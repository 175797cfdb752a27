"""What goes to one peer: the items, in order, and how much of its room they take."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import Future
from typing import Any

from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.parcels import Parcel
from rlinf.scheduler.comm.peer import Reply
from rlinf.scheduler.errors import CommError
from rlinf.scheduler.mailbox.transfer import Transfer

ITEM_SERVICE = "mailbox.item"
ROOM_SERVICE = "mailbox.room"


class Outgoing(Transfer, ABC):
    """One item on its way out to one peer.

    Attributes:
        size_bytes: how much of the peer's room it takes.
        has_left: whether it was handed to the messenger.
        in_shared_memory: whether it lies there, for the peer to fetch it.
        alone: whether it leaves when nothing else is under way, and nothing else leaves until it is acknowledged.
    """

    def __init__(self, operation: str, peer: str, timeout_s: float, size_bytes: int) -> None:
        super().__init__(operation, peer, timeout_s)
        self.size_bytes = size_bytes
        self.has_left = False
        self.in_shared_memory = False
        self.alone = False

    @abstractmethod
    def leave(self, endpoint: Endpoint, *, snapshot: bool) -> Future[Reply]:
        """Send it to the peer; the future of the peer's acknowledgement, whose head says what was taken there.

        Args:
            endpoint: the peer.
            snapshot: whether the memory that it refers to may be changed after this call.
        """

    def goes_alone(self, endpoint: Endpoint) -> bool:
        """Whether it has to be alone on the way: it may come by another one, and take longer there."""
        del endpoint
        return False

    def detach(self) -> None:
        """It has to wait: share no memory with the object any more."""

    def let_go(self) -> None:
        """Nobody needs its bytes any more."""


class ItemOfSend(Outgoing):
    """An item of send."""

    def __init__(
        self, messenger: Messenger, own_name: str, peer: str, timeout_s: float, parcel: Parcel, meta: Any
    ) -> None:
        super().__init__("send", peer, timeout_s, parcel.size_bytes)
        self._messenger = messenger
        self._own_name = own_name
        self._parcel: Parcel | None = parcel
        self.in_shared_memory = parcel.in_shared_memory
        self._meta = meta

    def leave(self, endpoint: Endpoint, *, snapshot: bool) -> Future[Reply]:
        """See `Outgoing.leave`."""
        parcel = self._parcel
        if parcel is None:
            raise CommError(f"what goes to '{self.peer}' was given up")
        head = [self._own_name, self.peer, self._meta]
        frames = parcel.frames_for(endpoint)
        snapshot = snapshot and not parcel.owns_memory
        answer = self._messenger.request(endpoint, ITEM_SERVICE, head, frames, snapshot=snapshot)
        if not parcel.in_shared_memory:
            # The messenger has what it needs; the item must not keep the memory until its acknowledgement.
            self._parcel = None
        return answer

    def detach(self) -> None:
        """See `Outgoing.detach`."""
        if self._parcel is not None:
            self._parcel = self._parcel.detached()

    def let_go(self) -> None:
        """See `Outgoing.let_go`."""
        self._parcel = None


class Lane:
    """What goes to one peer under one topic.

    Attributes:
        waiting: items that have not left, in order.
        under_way: items that have left and are not acknowledged,
        lone: and one of them that has to be the only one.
        sent_bytes: bytes that ever left for this process.
        taken_bytes: how many of them, as far as we know, somebody there has received.
    """

    def __init__(self, name: str, topic: str) -> None:
        self.name = name
        self.topic = topic
        # Re-entrant: an answer may be there already when its callback is added, and then runs at once.
        self.lock = threading.RLock()
        self.endpoint: Endpoint | None = None
        self.waiting: deque[Outgoing] = deque()
        self.under_way: set[Outgoing] = set()
        self.lone: Outgoing | None = None
        self.room: Future[Reply] | None = None
        self.sent_bytes = 0
        self.taken_bytes = 0

    @property
    def held_bytes(self) -> int:
        """What the peer holds for us, as far as we know."""
        return self.sent_bytes - self.taken_bytes

    def has_room(self, size_bytes: int, limit_bytes: int) -> bool:
        """Whether the peer may hold so much more."""
        return self.held_bytes <= 0 or self.held_bytes + size_bytes <= limit_bytes

    def is_free_for(self, item: Outgoing) -> bool:
        """Whether what is under way lets an item leave; decides whether it goes alone."""
        if self.lone is not None or self.endpoint is None:
            return False
        item.alone = item.goes_alone(self.endpoint)
        return not item.alone or not self.under_way

    def arrived(self, item: Outgoing) -> None:
        """An item is under way no longer."""
        self.under_way.discard(item)
        if self.lone is item:
            self.lone = None

    def detach(self) -> list[Outgoing]:
        """Forget the process; what waited for it comes back."""
        waiting = list(self.waiting)
        self.waiting.clear()
        self.under_way.clear()
        self.lone = None
        self.endpoint = None
        self.room = None
        self.sent_bytes = self.taken_bytes = 0
        return waiting
