"""Checkpoints: looks on the I/O thread, files beside it. Without them what a channel holds ends with its process."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

from msgspec.structs import replace

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.features.successors import ProducersFeature, SubscriptionsFeature
from rlinf_scheduler.channel.held import Fetching
from rlinf_scheduler.channel.operation import is_consumed
from rlinf_scheduler.channel.remote_items import RemoteItem
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.channel.spec import ChannelSpec
from rlinf_scheduler.comm.disk import Disk
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.runtime import Runtime
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.durable.checkpoint_files import ChannelHead, SavedChannel, read_channel, write_file
from rlinf_scheduler.errors import CheckpointError
from rlinf_scheduler.queueing.item import Item, marks_tell
from rlinf_scheduler.queueing.policies import ChannelData
from rlinf_scheduler.queueing.producers import Producers
from rlinf_scheduler.queueing.snapshot import Snapshot, merged

# A first look is kept so long for its second one,
LOOK_S = 60.0
# and until so much was put after it, or as much as the channel holds if that is more.
WATCHED_BYTES = 1 << 30


def restore(server: ChannelServer, saved: SavedChannel) -> None:
    """Let a server that is new hold what a checkpoint has."""
    server.state.set_clock(server.runtime.now())
    server.state.restore(saved.head.state, saved.items)
    server.feature(ProducersFeature).producers.restore(saved.head.producers)
    server.feature(SubscriptionsFeature).resume()


def read_to_restore(spec: ChannelSpec, disk: Disk) -> Callable[[ChannelServer], None]:
    """Read what a channel is to be restored from; return what has its server hold that.

    Raises:
        CheckpointError: it cannot be read, or does not fit.
    """
    saved = read_channel(spec.restore, disk)
    saved.check_fits(spec)
    return partial(restore, saved=saved)


class CheckpointsFeature:
    """The handlers of checkpoints at one server."""

    def __init__(self, server: ChannelServer) -> None:
        # What is saved is no part of what happens to a channel.
        self._runtime = server.beside
        self._server = server
        self._state = server.state
        self._watched_bytes = max(WATCHED_BYTES, server.max_bytes)
        self._looks: dict[tuple[str, str], Snapshot] = {}
        # First looks after which too much was put.
        self._given_up: set[tuple[str, str]] = set()
        # What is to be written, one file after the other, the first of them just now.
        self._line: deque[_Writing] = deque()
        self._held: set[int] = set()
        server.handlers |= {
            control_wire.Look: self._look,
            control_wire.Save: self._save,
            control_wire.Forget: self._drop_look,
        }
        server.outbox.holders.append(self.holds)
        server.on_lost.append(self.lose)

    def holds(self, item: Any) -> bool:
        """Whether an item is, or will be, written to disk, so that who takes it must not write into its bytes."""
        return id(item) in self._held or bool(self._looks)

    def lose(self, client: str) -> None:
        """A client is gone: it takes no second look."""
        for key in [key for key in (*self._looks, *self._given_up) if key[0] == client]:
            self._forget(key)

    def _drop_look(self, request: Request) -> None:
        self._forget((request.peer_id, request.head.token))
        request.reply(None)

    def _look(self, request: Request) -> None:
        """Remember what the channel holds now, for a second look."""
        snapshot = self._snapshot(request)
        if snapshot is not None:
            key = request.peer_id, request.head.token
            self._looks[key] = snapshot
            self._state.queues.tally.watch(snapshot.entered, self._watched_bytes, lambda: self._give_up(key))
            self._runtime.call_later(LOOK_S, lambda: self._expire(key))
            request.reply(control_wire.Saved())
            self._note_held()

    def _save(self, request: Request) -> None:
        """Have what the channel holds written, and what it held since a first look."""
        snapshot = self._snapshot(request)
        if snapshot is None:
            return
        key = request.peer_id, request.head.token
        problem = self._why_gone(key)
        first = self._forget(key)
        if request.head.token and first is None:
            request.reply(control_wire.Saved(0, problem))
            return
        producers = self._server.feature(ProducersFeature).producers
        self._line.append(_Writing(self._runtime, request, self._server.spec, first, snapshot, producers))
        if len(self._line) == 1:
            self._begin_to_write()
        self._note_held()

    def _snapshot(self, request: Request) -> Snapshot | None:
        """Return what there is now; None if something that is to be done with is over, as is then answered."""
        done = request.head.done
        over = self._state.queues.tally.lender.first_over(request.peer_id, done)
        if over is None:
            return self._state.snapshot(at_rest=True, done=done)
        request.reply(control_wire.Saved(*over))
        return None

    def _begin_to_write(self) -> None:
        self._runtime.run_beside(self._write, self._line[0])

    def _write(self, writing: _Writing) -> None:
        """Write a file, on a thread of its own."""
        writing.run()
        self._runtime.submit(partial(self._on_written, writing))

    def _on_written(self, writing: _Writing) -> None:
        self._line.popleft()
        writing.request.reply(writing.result)
        if self._line:
            self._begin_to_write()
        self._note_held()

    def _expire(self, key: tuple[str, str]) -> None:
        self._forget(key)

    def _give_up(self, key: tuple[str, str]) -> None:
        """What was there at a first look, and since, is let go; its second look is told so."""
        self._forget(key)
        self._given_up.add(key)

    def _why_gone(self, key: tuple[str, str]) -> str:
        if key not in self._given_up:
            return "its first look was too long ago"
        put = f"more than {self._watched_bytes >> 20} MiB were put after its first look"
        return f"{put}, before all other channels had theirs; save once more"

    def _forget(self, key: tuple[str, str]) -> Snapshot | None:
        """A first look is needed no more, or now."""
        self._given_up.discard(key)
        snapshot = self._looks.pop(key, None)
        if snapshot is not None:
            self._state.queues.tally.unwatch(snapshot.entered)
        return snapshot

    def _note_held(self) -> None:
        snapshots = [each for writing in self._line for each in writing.snapshots]
        self._held = {id(item) for snapshot in snapshots for item in snapshot.items}
        self._held.update(id(item) for snapshot in snapshots for _, item in snapshot.entered)


class _Writing:
    """One file that is to be written."""

    def __init__(
        self,
        runtime: Runtime,
        request: Request,
        spec: ChannelSpec,
        first: Snapshot | None,
        second: Snapshot,
        producers: Producers,
    ) -> None:
        self._runtime = runtime
        self.request = request
        self.snapshots = [second] if first is None else [first, second]
        self.result = control_wire.Saved(0, "it was not written")
        self._spec = spec
        self._producers = producers.copy()

    def run(self) -> None:
        try:
            self.result = self._run(self.request.head.path)
        except CheckpointError as error:
            self.result = control_wire.Saved(0, error.problem)
        except Exception as error:  # noqa: BLE001 - whoever asked is told
            self.result = control_wire.Saved(0, f"it cannot be written: {error!r}")

    def _run(self, path: str) -> control_wire.Saved:
        copies: dict[int, list[Buffer]] = {}
        taken: set[int] = set()
        for getter in (getter for snapshot in self.snapshots for getter in snapshot.sent):
            sent = getter.items or []
            if not marks_tell(sent):
                continue
            items = [item for item in sent if not item.lost and item.payload.block is not None]
            # Who takes what is on its way may write into it, and sets its mark before.
            for item in items:
                copies[id(item)] = [bytes(frame) for frame in item.payload.frames()]
            # What was given back first is there: the mark is of whom one of its items was given to after that.
            if is_consumed(item.payload for item in items) and getter.items is not None:
                taken.update(map(id, sent))
        snapshot = merged(*self.snapshots) if len(self.snapshots) > 1 else self.snapshots[0]
        data = _without(snapshot, taken)
        # What subscriptions see too is written once.
        first: dict[int, Item] = {}
        for item in snapshot.items:
            first.setdefault(id(item.payload), item)

        def frames() -> Iterator[list[Buffer]]:
            for item in first.values():
                yield [] if id(item) in taken else copies.get(id(item)) or self._frames_of(item)

        places: list[int] = []
        if len(first) < len(snapshot.items):
            place_of = {payload: place for place, payload in enumerate(first)}
            places = [place_of[id(item.payload)] for item in snapshot.items]
        head = ChannelHead(len(first), self._spec, data, self._producers, time.time(), places)
        size_bytes = write_file(path, head, frames(), self._runtime.disk)
        return control_wire.Saved(0, "", len(first) - len(taken), size_bytes)

    def _frames_of(self, item: Item) -> list[Buffer]:
        """The bytes of an item, fetched from the node that holds them if that is another one."""
        payload = item.payload
        if not isinstance(payload, RemoteItem):
            if item.lost:
                raise CheckpointError(self.request.head.path, f"an item {item.lost}; save once more")
            return list(payload.frames())
        fetched: Promise[ReceivedPayload] = Promise()
        self._runtime.submit(partial(self._fetch, payload, fetched))
        return fetched.result().frames()

    def _fetch(self, item: RemoteItem, fetched: Promise[ReceivedPayload]) -> None:
        def done(items: list[ReceivedPayload] | None, error: Exception | None) -> None:
            if items is not None:
                fetched.set_result(items[0])
            else:
                problem = f"an item on {item.at.node} cannot be had: {error}"
                fetched.set_exception(CheckpointError(self.request.head.path, problem))

        Fetching(self._runtime, [item.at], done).begin()


def _without(snapshot: Snapshot, gone: Collection[int]) -> ChannelData:
    """The data without items that were on their way and have been taken."""
    if not gone:
        return snapshot.data

    def stays(item: Item) -> bool:
        return id(snapshot.items[item.payload]) not in gone

    queues = [
        replace(queue, returned=[item for item in queue.returned if stays(item)])
        for queue in snapshot.data.queues
    ]
    return replace(snapshot.data, queues=queues)
