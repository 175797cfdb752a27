"""broadcast: one object to many processes, its bytes written once on every machine.

On its own machine the source writes the object into shared memory once and sends descriptors. On every other machine
the first member that can be reached gets the bytes; it hands the object on to the others there (see `relay`).
Each member's items keep the mailbox's promises: they arrive in order, and wait at the source for room.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from rlinf.scheduler.comm.codec import encode
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.handle import AsyncHandle
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.parcels import Parcel
from rlinf.scheduler.comm.peer import Reply, complete
from rlinf.scheduler.errors import CommError, CommTimeout, PeerDied, PeerNotFound
from rlinf.scheduler.mailbox.inbox import Inbox, Item
from rlinf.scheduler.mailbox.members import Members
from rlinf.scheduler.mailbox.outbox import Outbox
from rlinf.scheduler.mailbox.outgoing import ITEM_SERVICE, Outgoing
from rlinf.scheduler.mailbox.relay import HAND_ON_SERVICE, RELEASE_SERVICE, hand_on_head
from rlinf.scheduler.mailbox.stamp import Stamp

OPERATION = "broadcast"


class Broadcasts:
    """This process's part in broadcasts.

    Args:
        messenger: this process's messenger.
        outbox: through which items go to the other members.
        inbox: where items of others arrive.
        own_name: this process's name.
    """

    def __init__(self, messenger: Messenger, outbox: Outbox, inbox: Inbox, own_name: str) -> None:
        self._messenger = messenger
        self._outbox = outbox
        self._inbox = inbox
        self._own_name = own_name
        self._topics: dict[str, _Topic] = {}

    def send(
        self, obj: Any, members: Members, *, timeout_s: float, snapshot: bool, wait_s: float
    ) -> AsyncHandle[Any]:
        """Send `obj` to the other members; the handle's result is `obj`; see `Mailbox.broadcast`."""
        self._messenger.check_process()
        if not members.targets:
            return AsyncHandle.completed(obj, OPERATION)
        topic_name = members.topic
        parcel = self._pack(obj, members, topic_name, snapshot=snapshot, wait_s=min(wait_s, timeout_s))
        topic = self._topics.get(topic_name) or self._topics.setdefault(topic_name, _Topic())
        # Whoever broadcasts at the same time: every member gets the objects in the same order.
        with topic.lock:
            topic.last_number += 1
            stamp = Stamp(topic_name, topic.last_number, self._messenger.endpoint)
            sending = _Sending(self._messenger, self._outbox, members, stamp, parcel)
            parts = [_Part(target, timeout_s, sending) for target in members.targets]
            futures = [self._outbox.post(part, topic_name) for part in parts]
        return AsyncHandle(
            _all_of(futures, members.targets), lambda _: obj, f"broadcast from '{self._own_name}'"
        )

    def recv(self, members: Members, *, timeout_s: float) -> AsyncHandle[Any]:
        """The next object that the source sends to these members; see `Mailbox.broadcast`."""
        future, take = self._inbox.recv(
            members.source,
            timeout_s=timeout_s,
            topic=members.topic,
            operation=OPERATION,
            waiting_for="its source to call it",
        )

        def finish(item: Item) -> Any:
            take()
            return item.take().load()

        return AsyncHandle(future, finish, f"broadcast from '{members.source}'")

    def _pack(self, obj: Any, members: Members, topic: str, *, snapshot: bool, wait_s: float) -> Parcel:
        encoded = encode(obj)
        parcels = self._messenger.parcels
        found = [self._outbox.endpoint(target, topic) for target in members.targets]
        readers = [peer for peer in found if peer is None or parcels.reads_ours(peer.process_id)]
        # Shared memory that nobody reads would be a copy for nothing.
        peer = None if readers else found[0]
        return parcels.pack(encoded, peer, snapshot=snapshot, wait_s=wait_s, shared=len(readers) > 1)


class _Topic:
    """The broadcasts of one source to the same members."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.last_number = -1


class _Part(Outgoing):
    """What one member gets of a broadcast."""

    def __init__(self, peer: str, timeout_s: float, sending: _Sending) -> None:
        super().__init__(OPERATION, peer, timeout_s, sending.size_bytes)
        self.in_shared_memory = sending.in_shared_memory
        self._sending: _Sending | None = sending

    def leave(self, endpoint: Endpoint, *, snapshot: bool) -> Future[Reply]:
        if self._sending is None:
            raise CommError(f"what goes to '{self.peer}' was given up")
        return self._sending.leave(self.peer, endpoint, directly=not self.alone)

    def goes_alone(self, endpoint: Endpoint) -> bool:
        return self._sending is not None and self._sending.may_be_handed_on(endpoint)

    def let_go(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.end_part()


class _Sending:
    """One broadcast on its way to all members.

    Args:
        messenger: the source's messenger.
        outbox: what knows where members are.
        members: who takes part.
        stamp: which broadcast it is.
        parcel: the object.
    """

    def __init__(
        self, messenger: Messenger, outbox: Outbox, members: Members, stamp: Stamp, parcel: Parcel
    ) -> None:
        self.size_bytes = parcel.size_bytes
        self.in_shared_memory = parcel.in_shared_memory
        self._messenger = messenger
        self._outbox = outbox
        self._members = members
        self._stamp = stamp
        self._parcel = parcel
        self._lock = threading.Lock()
        self._num_parts = len(members.targets)
        # Who hands it on: machine id -> a process that was sent the bytes.
        self._relays: dict[str, Endpoint] = {}
        self._keepers: list[Endpoint] = []

    def may_be_handed_on(self, endpoint: Endpoint) -> bool:
        """Whether a member may get it from another member than the source."""
        if endpoint.machine_id == self._messenger.endpoint.machine_id:
            return False
        return endpoint.machine_id in self._relays or self._has_neighbours(endpoint)

    def leave(self, member: str, endpoint: Endpoint, *, directly: bool) -> Future[Reply]:
        """Send it to a member; the future of the member's acknowledgement, whichever way it came."""
        if directly:
            return self._send(member, endpoint, keep=False)
        arrival: Future[Reply] = Future()
        self._send_there(member, endpoint, arrival)
        return arrival

    def end_part(self) -> None:
        """A member has it, or will never take it."""
        with self._lock:
            self._num_parts -= 1
            if self._num_parts:
                return
            keepers = self._keepers
        for keeper in keepers:
            self._messenger.notify(keeper, RELEASE_SERVICE, [self._stamp.topic, self._stamp.number])

    # -- other machines --------------------------------------------------------------------------

    def _send_there(self, member: str, endpoint: Endpoint, arrival: Future[Reply]) -> None:
        """Have the machine's relay hand it on; the first member to come here is sent the bytes and becomes it."""
        # Under the lock, so that the relay gets the bytes before it is asked to hand them on.
        with self._lock:
            relay = self._relays.get(endpoint.machine_id)
            if relay is None:
                self._relays[endpoint.machine_id] = endpoint
                self._keepers.append(endpoint)
                request = self._send(member, endpoint, keep=True)
            else:
                head = hand_on_head(self._stamp, member, endpoint)
                request = self._messenger.request(relay, HAND_ON_SERVICE, head)
        if relay is None:
            request.add_done_callback(lambda done: self._sent(endpoint, done, arrival))
        else:
            request.add_done_callback(lambda done: self._handed_on(relay, member, endpoint, done, arrival))

    def _sent(self, endpoint: Endpoint, answer: Future[Reply], arrival: Future[Reply]) -> None:
        error = answer.exception()
        if error is None:
            complete(arrival, answer.result())
            return
        self._dismiss(endpoint)
        complete(arrival, error=error)

    def _handed_on(
        self, relay: Endpoint, member: str, endpoint: Endpoint, answer: Future[Reply], arrival: Future[Reply]
    ) -> None:
        if answer.exception() is not None:
            # It is gone, or has not kept the item: another one takes its place, this member perhaps.
            self._dismiss(relay)
            self._send_there(member, endpoint, arrival)
            return
        taken_bytes, problem = answer.result().head
        if problem:
            # It has the item and cannot reach the member. If we cannot either, we learn why.
            direct = self._send(member, endpoint, keep=False)
            direct.add_done_callback(lambda done: self._sent(endpoint, done, arrival))
            return
        complete(arrival, Reply(taken_bytes, []))

    def _dismiss(self, relay: Endpoint) -> None:
        with self._lock:
            if self._relays.get(relay.machine_id) == relay:
                del self._relays[relay.machine_id]
            if relay in self._keepers:
                self._keepers.remove(relay)

    def _has_neighbours(self, endpoint: Endpoint) -> bool:
        """Whether other members are on a member's machine, or may be: some have not been found yet."""
        found = [self._outbox.endpoint(target, self._stamp.topic) for target in self._members.targets]
        return any(
            peer is None or (peer.machine_id == endpoint.machine_id and peer != endpoint) for peer in found
        )

    def _send(self, member: str, endpoint: Endpoint, *, keep: bool) -> Future[Reply]:
        stamp = Stamp(self._stamp.topic, self._stamp.number, self._stamp.origin, keep)
        head = [self._members.source, member, None, stamp.to_wire()]
        frames = self._parcel.frames_for(endpoint)
        return self._messenger.request(endpoint, ITEM_SERVICE, head, frames, snapshot=False)


# -- the end of a broadcast ----------------------------------------------------------------------


def _all_of(futures: Sequence[Future[None]], names: Sequence[str]) -> Future[None]:
    """Done when all are; then with what kept some members from having the object. Cancelling it cancels all."""
    started = time.monotonic()
    whole: Future[None] = Future()
    lock = threading.Lock()
    num_left = len(futures)

    def one_done(_future: Future[None]) -> None:
        nonlocal num_left
        with lock:
            num_left -= 1
            if num_left:
                return
        if whole.set_running_or_notify_cancel():
            complete(whole, error=_what_failed(futures, names, time.monotonic() - started))

    def cancel_all(done: Future[None]) -> None:
        if done.cancelled():
            for future in futures:
                future.cancel()

    whole.add_done_callback(cancel_all)
    for future in futures:
        future.add_done_callback(one_done)
    return whole


def _what_failed(
    futures: Sequence[Future[None]], names: Sequence[str], waited_s: float
) -> BaseException | None:
    """One error for all members that do not have the object; None if all have it."""
    errors = {
        name: error
        for name, future in zip(names, futures, strict=True)
        if not future.cancelled() and (error := future.exception()) is not None
    }
    if len(errors) <= 1:
        return next(iter(errors.values()), None)
    missing = ", ".join(errors)
    if all(isinstance(error, PeerDied) for error in errors.values()):
        return PeerDied(missing, "; ".join(_reason(name, error) for name, error in errors.items()))
    if any(isinstance(error, (CommTimeout, PeerNotFound)) for error in errors.values()):
        waiting_for = "; ".join(_reason(name, error) for name, error in errors.items())
        return CommTimeout(OPERATION, missing, waited_s, waiting_for)
    return CommError("; ".join(_reason(name, error) for name, error in errors.items()))


def _reason(name: str, error: BaseException) -> str:
    """Why a member does not have the object."""
    if isinstance(error, PeerNotFound):
        return f"'{name}', which never registered"
    if isinstance(error, CommTimeout):
        return f"'{name}' ({error.waiting_for})"
    if isinstance(error, PeerDied):
        return f"'{name}', which is gone ({error.reason})"
    return f"'{name}' ({error})"
