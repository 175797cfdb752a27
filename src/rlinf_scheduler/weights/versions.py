"""The versions of weights that this process has for others, its own and held ones, as the job's home tells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.locations import DeviceObjects, StagedObject
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Reply, Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.replication import AnswerKind, Key, Publisher, ReaderAnswer
from rlinf_scheduler.comm.replication.deltas import MachineCopies
from rlinf_scheduler.comm.replication.publisher import give
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.shm.payloads import SHARED_BYTES, Payloads
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.errors import SharedMemoryUnreadable, WeightsError
from rlinf_scheduler.weights.delta import diff
from rlinf_scheduler.weights.records import (
    FETCH,
    HELD,
    HOLD,
    KEEP,
    NO_VERSION,
    SERVICE,
    FetchWeights,
    HeldShards,
    HoldShards,
    KeptVersions,
    check_growth,
)

Packed: TypeAlias = "Payload | StagedObject"
DeltaChoice: TypeAlias = Literal["auto"] | bool

logger = Reporter(__name__)


@dataclass(slots=True)
class _Version:
    """What is here of one version.

    Attributes:
        payload: it, in host memory; None as long as nobody wants it there.
        staged: it, on a device; None if it is not there.
        unserved: questions of readers that wait until it is in host memory.
        chain: of how many deltas on each other machines can have it.
    """

    payload: Payload | None = None
    staged: StagedObject | None = None
    unserved: list[Request] = field(default_factory=list)
    chain: int = 0


class _HeldPayload(Payload):
    """Another process's shards of a version, in its shared memory, which lives as long as this."""

    __slots__ = ("_arrived", "_payloads")

    def __init__(self, payloads: Payloads, arrived: ReceivedPayload) -> None:
        size_bytes = arrived.size_bytes
        super().__init__(payloads.own_id, payloads.reads_ours, [], None, size_bytes=size_bytes, shared=False)
        self._payloads, self._arrived = payloads, arrived

    @property
    def sizes(self) -> list[int]:
        """How many bytes each of its frames has."""
        return [*self._arrived.sizes] or [*map(len, self._arrived.frames())]

    def frames_for(self, peer: Endpoint) -> list[Buffer]:
        """What to send to `peer`."""
        return self._payloads.frames_for(self._arrived, peer)

    def bytes_frames(self) -> list[Buffer]:
        """Its bytes."""
        return self._arrived.frames()


@dataclass(slots=True)
class _HeldVersion:
    """What is held of a process: which version, and how many bytes if that process is gone."""

    version: int
    key: Key
    payload: Payload | None = None
    orphan_bytes: int = 0


class Versions:
    """Gives readers the versions that this process keeps. All but `version` is on the I/O thread."""

    # After so many versions of which each was made of the one before, one goes as a whole.
    max_chain = 32

    def __init__(self, messenger: Messenger, devices: DeviceObjects, home: Endpoint) -> None:
        self._messenger = messenger
        self._devices = devices
        self._home = home
        # By the name of the weights, and the id of the process whose they are.
        self._held: dict[tuple[str, str], _HeldVersion] = {}
        self._publisher = Publisher(messenger, SERVICE)
        self._versions: dict[str, dict[int, _Version]] = {}
        self._newest: dict[str, int] = {}
        messenger.serve(FETCH, self._serve, FetchWeights)
        messenger.serve(KEEP, self._on_keep, KeptVersions)
        messenger.serve(HOLD, self._on_hold, HoldShards)
        messenger.on_peer_lost(self._on_peer_lost)

    @property
    def names(self) -> list[str]:
        """What this process publishes."""
        return [name for name, newest in self._newest.items() if newest != NO_VERSION]

    def version(self, name: str) -> int:
        """The newest version; NO_VERSION if there is none; from any thread."""
        return self._newest.get(name, NO_VERSION)

    def size_bytes(self, name: str) -> int:
        """The size of the newest version; 0 if there is none."""
        newest = self._versions.get(name, {}).get(self.version(name))
        there = None if newest is None else newest.staged or newest.payload
        return 0 if there is None else there.size_bytes

    def copies(self, name: str) -> MachineCopies:
        """Return how its versions have come to other machines."""
        return self._publisher.copies.get(name) or MachineCopies()

    def put(self, name: str, version: int, new: Packed, delta: DeltaChoice = "auto") -> None:
        """Make a version one that readers can get; `delta` as of `Worker.publish_weights`.

        Raises:
            WeightsError: the version does not grow.
        """
        before = self.version(name)
        check_growth(name, before, version)
        self._versions.setdefault(name, {})[version] = there = _Version()
        self._newest[name] = version
        if isinstance(new, Payload):
            self._publish(Key(name, version), there, new)
            if delta is not False:
                self._compare(Key(name, version), Key(name, before), forced=delta is True)
        else:
            there.staged = new

    def withdraw(self, name: str, version: int, before: int) -> None:
        """Undo a `put` that was refused; `before` was the newest version then."""
        if (
            version in self._versions[name]
        ):  # and not given up meanwhile, as a later launch has taken the name over
            self._drop(name, version)
        if self._newest[name] == version:
            self._newest[name] = before

    def keep(self, keep: KeptVersions) -> list[_Version]:
        """Forget the versions that nobody needs any more; they come back. Hold what is to be held."""
        self._hold(keep)
        there = self._versions.get(keep.name, {})
        over = [each for each in there if each <= keep.up_to and each not in keep.versions]
        return [self._drop(keep.name, version) for version in over]

    def _on_keep(self, notice: Request) -> None:
        self.keep(notice.head)

    # -- what is held for others -----------------------------------------------------------------

    def _hold(self, keep: KeptVersions) -> None:
        wanted = {each.process_id: each for each in keep.holds}
        for at, held in list(self._held.items()):
            if at[0] == keep.name and not (at[1] in wanted and held.version == keep.held):
                self._publisher.release(held.key)
                self._adopt(-self._held.pop(at).orphan_bytes)
        for process_id, publisher in wanted.items():
            at = (keep.name, process_id)
            if at not in self._held:
                key = Key(f"{keep.name} of {process_id}", keep.held)
                self._held[at] = held = _HeldVersion(keep.held, key)
                question = HoldShards(keep.name, keep.held, self._messenger.endpoint)
                asked = self._messenger.request(publisher, HOLD, question, reply_type=ReaderAnswer)
                asked.add_done_callback(partial(self._on_given, at, held))
        self._messenger.payloads.release_dropped()

    def _on_given(self, at: tuple[str, str], held: _HeldVersion, reply: Promise[Reply]) -> None:
        if self._held.get(at) is not held or reply.cancelled() or reply.exception() is not None:
            return
        if reply.result().head.kind is not AnswerKind.HERE:
            return
        payloads = self._messenger.payloads
        try:
            arrived = payloads.receive(reply.result().frames, to_load=False)
            held.payload = _HeldPayload(payloads, arrived)
        except (OSError, SharedMemoryUnreadable) as error:
            logger.warning("weights '%s': no copy of version %d is kept here: %s", at[0], held.version, error)
            return
        self._publisher.publish(held.key, held.payload, replicated=True)
        name, process_id = at
        self._messenger.notify(
            self._home, HELD, HeldShards(name, held.version, process_id, self._messenger.endpoint)
        )

    def _on_hold(self, request: Request) -> None:
        asked: HoldShards = request.head
        version = self._versions.get(asked.name, {}).get(asked.version)
        payload = None if version is None else version.payload
        key = Key(asked.name, asked.version)

        def answer() -> None:
            is_cheap = payload and (
                payload.size_bytes < SHARED_BYTES or payload.goes_as_descriptor(asked.holder)
            )
            if payload and is_cheap:
                give(request, ReaderAnswer(AnswerKind.HERE, key), payload, asked.holder)
            else:
                request.reply(ReaderAnswer(AnswerKind.GONE, key))

        self._messenger.payloads.when_ready(asked.holder, answer)

    def _on_peer_lost(self, process_id: str) -> None:
        for (_, of), held in self._held.items():
            if of == process_id and held.payload is not None and not held.orphan_bytes:
                held.orphan_bytes = held.payload.size_bytes
                self._adopt(held.orphan_bytes)

    def _adopt(self, num_bytes: int) -> None:
        """What dead processes have left counts among what this machine has in shared memory."""
        if num_bytes and self._messenger.payloads.arena is not None:
            self._messenger.payloads.arena.adopt(num_bytes)

    # -- its own ---------------------------------------------------------------------------------

    def _drop(self, name: str, version: int) -> _Version:
        dropped = self._versions[name].pop(version)
        self._publisher.release(Key(name, version))
        readers, dropped.unserved = dropped.unserved, []
        for reader in readers:
            _tell_over(reader)
        return dropped

    def _publish(self, key: Key, version: _Version, payload: Payload) -> None:
        version.payload = payload
        self._publisher.publish(key, payload, replicated=True)

    def _compare(self, key: Key, base: Key, *, forced: bool) -> None:
        """Have machines that have the version before get what has changed, if that is known in time to pay."""
        there = self._versions[key.name]
        old, new = there.get(base.number), there[key.number]
        if old is None or old.payload is None or new.payload is None or old.chain >= self.max_chain:
            return
        if list(old.payload.sizes) != list(new.payload.sizes):
            return
        limit_bytes = self._publisher.expect_delta(key, base, forced=forced)
        if limit_bytes:
            new.chain = old.chain + 1
            self._messenger.run_beside(self._compare_beside, key, old.payload, new.payload, limit_bytes)

    def _compare_beside(self, key: Key, old: Payload, new: Payload, limit_bytes: int) -> None:
        began, payload = self._messenger.now(), None

        def is_over() -> bool:
            there = self._versions[key.name].get(key.number)
            return there is None or there.payload is not new

        try:
            encoded = diff(old.bytes_frames(), new.bytes_frames(), limit_bytes, is_over)
            if encoded is not None:
                payload = self._messenger.payloads.pack(encoded, None, snapshot=True)
        except Exception as error:  # noqa: BLE001 - then the version goes as a whole
            logger.warning("what has changed in weights '%s' cannot be told: %r", key.name, error)
        took_s = self._messenger.now() - began
        self._messenger.submit(partial(self._publisher.offer_delta, key, new, payload, took_s))

    def _serve(self, request: Request) -> None:
        asked: FetchWeights = request.head
        version = self._versions.get(asked.name, {}).get(asked.version)
        if request.is_cancelled:
            return
        if asked.of:
            key = Key(f"{asked.name} of {asked.of}", asked.version)
            self._publisher.answer(request, key, asked.want, lambda: _tell_over(request))
        elif version is None:
            _tell_over(request)
        elif version.staged is not None:
            reads_ours = partial(self._serve_staged, version, version.staged, request)
            self._messenger.payloads.when_ready(asked.want.reader, reads_ours)
        else:
            key = Key(asked.name, asked.version)
            self._publisher.answer(request, key, asked.want, lambda: _tell_over(request))

    def _serve_staged(self, version: _Version, staged: StagedObject, request: Request) -> None:
        asked: FetchWeights = request.head
        key = Key(asked.name, asked.version)
        if self._versions[asked.name].get(asked.version) is not version:
            _tell_over(request)
        elif request.is_cancelled:
            return
        elif staged.goes_to(asked.want.reader, asked.devices) and not asked.want.unreadable:
            staged.given_to(asked.want.reader)
            give(request, ReaderAnswer(AnswerKind.HERE, key), staged.payload, asked.want.reader)
        elif version.payload is not None:
            self._publisher.answer(request, key, asked.want, lambda: _tell_over(request))
        else:
            version.unserved.append(request)
            if len(version.unserved) == 1:
                copied = partial(self._on_copied, key, version, staged)
                self._devices.copy_out(f"weights '{asked.name}'", staged, copied)

    def _on_copied(
        self, key: Key, version: _Version, staged: StagedObject, copied: Payload | BaseException
    ) -> None:
        if self._versions[key.name].get(key.number) is not version:
            return
        readers, version.unserved = version.unserved, []
        if isinstance(copied, BaseException):
            for reader in readers:
                reader.fail(WeightsError(key.name, f"they cannot be copied off {staged.device}: {copied}"))
            return
        self._publish(key, version, copied)
        for reader in readers:
            self._serve(reader)


def _tell_over(request: Request) -> None:
    asked: FetchWeights = request.head
    request.reply(ReaderAnswer(AnswerKind.GONE, Key(asked.name, asked.version)))
