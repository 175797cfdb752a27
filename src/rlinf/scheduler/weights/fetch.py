"""The reader's side of weights: from a name to a version that has come here."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from rlinf.scheduler.comm.directory import DirectoryClient, Entry
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.framing import Buffer
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.parcel import Arrived
from rlinf.scheduler.comm.peer import Reply
from rlinf.scheduler.errors import PeerDied, SharedMemoryUnreadable
from rlinf.scheduler.mailbox.transfer import Transfer
from rlinf.scheduler.weights.mirror import COPY, GONE, Mirrors
from rlinf.scheduler.weights.shelf import AT, FETCH, IS, MIRROR, NO_VERSION, NOTHING_HEARD
from rlinf.scheduler.weights.state_dicts import StateDictWriter

# How long a publisher may take to answer who does not want to wait.
ANSWER_TIMEOUT_S = 30.0


class Delivery:
    """A version that has come here, until it is written to where it should go.

    Attributes:
        version: which one.
    """

    __slots__ = ("_arrived", "version")

    def __init__(self, version: int, arrived: Arrived) -> None:
        self.version = version
        self._arrived: Arrived | None = arrived

    def write(self, writer: StateDictWriter) -> None:
        """Write it to its place and give its memory back; once."""
        arrived, self._arrived = self._arrived, None
        frames: list[Buffer] = [] if arrived is None else list(arrived.frames())
        try:
            writer.write(self.version, frames)
        finally:
            # An error keeps what its traceback refers to for as long as somebody keeps the error.
            del arrived
            frames.clear()


class Fetch(Transfer):
    """One fetch under way; all of it happens on the I/O thread but its beginning.

    So whatever lies in shared memory is locked before its owner hears that the answer was taken.

    Args:
        messenger: this process's messenger.
        mirrors: takes what this process is to hand on to others of its machine.
        name: what the weights are published as.
        min_version: the least version that will do; NO_VERSION if any does.
        timeout_s: how long it may take; 0 for what is there now.
    """

    def __init__(
        self, messenger: Messenger, mirrors: Mirrors, name: str, min_version: int, timeout_s: float
    ) -> None:
        super().__init__("fetch", entry_of(name), timeout_s)
        self._messenger = messenger
        self._mirrors = mirrors
        self._name = name
        self._min_version = min_version
        self._publisher: Endpoint = messenger.endpoint
        self._heard = NOTHING_HEARD
        self._asked: Future[Reply] | None = None
        self._unreadable = ""

    def start(self, directory: DirectoryClient) -> Future[Delivery]:
        """Begin; the future of its end, which ends the fetch when it is cancelled or dropped."""
        messenger = self._messenger
        future = self.new_weak_future(lambda: messenger.submit(self.release))
        future.add_done_callback(lambda done: messenger.submit(self.release) if done.cancelled() else None)
        self.look_up(directory, self._found, self._end)
        return future

    def release(self) -> None:
        """Give up what is under way."""
        super().release()
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.cancel()

    def _found(self, entry: Entry) -> None:
        self._publisher = entry.endpoint
        self._messenger.submit(self._begin)

    def _begin(self) -> None:
        if self.over():
            return
        # Who does not want to wait gets what is there, but the answer takes its time.
        left_s = max(0.0, self.timeout_s - self.waited_s()) if self.timeout_s else ANSWER_TIMEOUT_S
        self._timer = self._messenger.call_later(left_s, self._expire)
        self._ask()

    def _ask(self, *, avoid: tuple[str, int] = ("", NO_VERSION)) -> None:
        own = self._messenger.endpoint.to_wire()
        head = [self._name, self._min_version, self._heard, own, self._unreadable, avoid]
        self._asked = self._messenger.request(self._publisher, FETCH, head)
        self._asked.add_done_callback(self._on_answer)

    def _on_answer(self, answer: Future[Reply]) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if error is not None:
            self._end(_of_publisher(error, self.peer))
            return
        reply = answer.result()
        kind, version, *rest = reply.head
        if kind == MIRROR:
            # Others rely on it, whether this fetch is still wanted or not.
            self._mirrors.take(self._name, self._publisher, version, reply.frames)
        if self.over():
            return
        if kind == IS:
            self._on_heard(version)
        elif kind == AT:
            self._ask_mirror(Endpoint.from_wire(rest[0]), version)
        else:
            self._deliver(version, reply.frames, self._ask)

    def _on_heard(self, version: int) -> None:
        self._heard = version
        if self.timeout_s == 0 and version < self._min_version:
            self._expire()
        else:
            self._ask()

    def _ask_mirror(self, mirror: Endpoint, version: int) -> None:
        own = self._messenger.endpoint.to_wire()
        head = [self._name, self._publisher.process_id, version, own, self._unreadable]

        def answered(answer: Future[Reply]) -> None:
            if answer.cancelled() or self.over():
                return
            if answer.exception() is not None or answer.result().head[0] == GONE:
                self._unreadable = ""
                self._ask(avoid=(mirror.process_id, version))
            else:
                self._deliver(version, answer.result().frames, lambda: self._ask_mirror(mirror, version))

        self._asked = self._messenger.request(mirror, COPY, head)
        self._asked.add_done_callback(answered)

    def _deliver(self, version: int, frames: list[Buffer], ask_again: Callable[[], None]) -> None:
        try:
            arrived = self._messenger.parcels.receive(frames)
        except SharedMemoryUnreadable as error:
            if self._unreadable:
                self._end(error)
            else:
                # Whoever sent it sends bytes from now on.
                self._unreadable = error.reason
                ask_again()
            return
        if self.claim():
            self.complete(Delivery(version, arrived))

    def _expire(self) -> None:
        if self._heard == NOTHING_HEARD:
            waiting_for = "its publisher's answer"
        else:
            there = "none" if self._heard == NO_VERSION else f"version {self._heard}"
            newer = self._heard < self._min_version or self._heard == NO_VERSION
            wanted = (
                f"version {self._min_version} or newer" if self._min_version != NO_VERSION else "any version"
            )
            waiting_for = f"{wanted}; {there} is published"
            if not newer:
                waiting_for += ", and on its way to this machine"
        self._end(self.timeout(waiting_for))

    def _end(self, error: BaseException) -> None:
        if self.claim():
            self.fail(error)


def entry_of(name: str) -> str:
    """What a publisher is registered as."""
    return f"weights/{name}"


def _of_publisher(error: BaseException, entry: str) -> BaseException:
    """The error of a request to a publisher: a dead one is called by what it published."""
    if isinstance(error, PeerDied):
        return PeerDied(entry, f"published by '{error.peer}': {error.reason}")
    return error
