"""Weights by name: one process publishes versions, any other copies the newest into tensors of its own."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from numbers import Integral
from typing import Any, Unpack

from msgspec.structs import replace

from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.directory import DEFAULT_TIMEOUT_S, DirectoryClient
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.finder import Finder
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.locations import DeviceObjects
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.replication import Replicas
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.payloads import SHARED_BYTES
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.comm.transfer import Transfers, checked_timeout
from rlinf_scheduler.errors import CommError, CommTimeout, WeightsError
from rlinf_scheduler.observe.levels import Levels
from rlinf_scheduler.observe.own_activity import OwnActivity
from rlinf_scheduler.observe.own_stats import OwnStats
from rlinf_scheduler.observe.process_stats import Activity, ProcessStats, PublishedVersion
from rlinf_scheduler.observe.timekeeping import FETCH, PUBLISH, TIMES
from rlinf_scheduler.rooms import has_room, of_room
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.membership import GroupMembership
from rlinf_scheduler.weights.delta import apply
from rlinf_scheduler.weights.fetch import Fetch, FetchedWeights, Readers
from rlinf_scheduler.weights.held import encode_held
from rlinf_scheduler.weights.index_service import READ, open_index
from rlinf_scheduler.weights.layout import WeightsLayout
from rlinf_scheduler.weights.plan import FetchOptions, Keys
from rlinf_scheduler.weights.records import (
    ANNOUNCE,
    NO_VERSION,
    SERVICE,
    Announce,
    DigestedLayout,
    KeptVersions,
    PublishingRank,
    ReadVersion,
    Shards,
    check_growth,
    digested,
    entry_of,
)
from rlinf_scheduler.weights.stream import BUCKET_BYTES, WeightsStream, WholeTensors
from rlinf_scheduler.weights.target import WeightsTarget
from rlinf_scheduler.weights.versions import DeltaChoice, Packed, Versions

logger = Reporter(__name__)

# How long the I/O thread and the job's home may take to do their part of a publication.
PUT_TIMEOUT_S = 30.0


class Weights:
    """Publishes weights of this process, and fetches those of others; at most one on a messenger.

    A publication writes the weights once, into shared memory where there is room, and announces them to the index at
    the job's home; it stays until a newer version is complete. Readers ask the index who has what. On the same machine
    they copy from there; of each other machine one reader gets the bytes, from the publisher or from another such
    reader, and hands them on there in the same way. A version is never changed: a reader that has begun reads all of
    it, whatever is published meanwhile, and its memory is free when the last one has ended.

    Attributes:
        read: what was copied last, by name.
    """

    def __init__(
        self,
        messenger: Messenger,
        home: Endpoint,
        devices: DeviceObjects | None = None,
        rank: PublishingRank | None = None,
    ) -> None:
        self._devices = devices or DeviceObjects()
        self._messenger = messenger
        self._home = home
        here = messenger.endpoint
        self._publisher = rank or PublishingRank(here, messenger.name, here.process_id)
        self._transfers = Transfers(messenger, Finder(messenger, DirectoryClient(messenger, home)))
        self._versions = Versions(messenger, self._devices, home)
        # Not `private`, here and below: readers copy out of it and write nothing, so they need no private maps.
        self._replicas = Replicas(messenger, SERVICE, private=False, apply=apply)
        self._readers = Readers(
            self._transfers,
            self._replicas,
            self._devices,
            home,
            self._publisher.rank % self._publisher.world_size,  # of a group that was resized it may be higher
            self._publisher.world_size,
        )
        # What was published last of each name, and what of it the index knows.
        self._layouts: dict[str, DigestedLayout] = {}
        self._announced: dict[str, bytes] = {}
        self._told: set[str] = set()
        self.read: dict[str, ReadVersion] = {}

    def publish(
        self,
        name: str,
        weights: Any,
        version: int,
        *,
        ranks: int | Sequence[int] | None = None,
        delta: DeltaChoice = "auto",
    ) -> None:
        """Make a version the one that readers get from now on; see `Worker.publish_weights`."""
        self._messenger.check_process()
        began = TIMES.now()
        number, all_ranks = _checked_version(name, version), _checked_ranks(name, ranks)
        if delta != "auto" and not isinstance(delta, bool):
            raise WeightsError(name, f"delta is True, False or 'auto', not {delta!r}")
        encoded, layout = encode_held(_checked_name(name), weights, self._devices.device_of)
        check_growth(name, self._versions.version(name), number)
        new = self._devices.stage(f"weights '{name}'", encoded) or self._packed(name, encoded)
        # The memory of the version before is given back in this thread.
        self._put(self._announcement(name, number, layout, new, all_ranks), new, delta)
        TIMES.note_moved(PUBLISH, began, f"publish version {number}", name, ((name, number),))

    def fetch(
        self,
        name: str,
        into: Any,
        *,
        min_version: int | None = None,
        version: int | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        **options: Unpack[FetchOptions],
    ) -> AsyncHandle[int]:
        """Copy the newest version into `into`; the handle's result is that version's number.

        The version is chosen when the index answers. It is copied by the thread that waits for the handle,
        even if `into` has that version already. Until then the version's memory stays in use. An interruption while it
        is copied is raised when the whole version is there; a second one meanwhile leaves a part, and the handle's
        next `wait` copies it again.

        Arguments and errors are those of `Worker.fetch_weights`. What is wrong with the arguments is raised at once.
        """
        self._messenger.check_process()
        target = WeightsTarget(_checked_name(name), into, **options)
        return self._fetch(target, name, min_version, version, timeout_s)

    def stream(
        self,
        name: str,
        *,
        min_version: int | None = None,
        version: int | None = None,
        keys: Keys = None,
        bucket_bytes: int = BUCKET_BYTES,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> WeightsStream:
        """Return the whole tensors of a version, once it has come to this machine, as of `Worker.stream_weights`."""
        self._messenger.check_process()
        target, limit_bytes = WholeTensors(_checked_name(name), keys), operator.index(bucket_bytes)
        found = self._fetch(target, name, min_version, version, timeout_s).wait()
        return target.stream(found, limit_bytes, self._messenger.payloads.release_dropped_soon)

    def _fetch(
        self,
        target: WeightsTarget | WholeTensors,
        name: str,
        min_version: int | None,
        version: int | None,
        timeout_s: float | None,
    ) -> AsyncHandle[int]:
        if version is not None and min_version is not None:
            problem = "version= is exactly that one, and min_version= that or a newer one: say one of them"
            raise WeightsError(name, problem)
        least = min_version if version is None else version
        wanted = NO_VERSION if least is None else _checked_version(name, least)
        limit_s = checked_timeout(timeout_s)
        fetch = Fetch(self._readers, target, name, wanted, limit_s, exact=version is not None)

        def write(delivery: FetchedWeights) -> int:
            began = TIMES.now()
            number = delivery.write(target)
            self.read[name] = delivery.read
            # So its publisher can fill this version's memory again at once, before it answers who asks for the next.
            self._messenger.payloads.release_dropped_soon()
            TIMES.note_moved(FETCH, began, f"fetch version {number}", name, ((name, number),))
            return number

        return AsyncHandle(fetch.begin(), write, f"fetch of weights '{name}'")

    def copies(self, name: str) -> dict[str, int]:
        """Return how versions of this process have come to other machines, as of `PublishedWeights.copies`."""
        return dict(self._versions.copies(name).counts)

    def add_to(self, doing: Activity) -> Activity:
        """Add what this process publishes to what it says of itself; on the I/O thread."""
        versions = {name: self._versions.version(name) for name in self._versions.names}
        return replace(doing, weights={**doing.weights, **versions})

    def add_stats(self, stats: ProcessStats) -> ProcessStats:
        """Add what this process publishes, and what it has fetched; on the I/O thread."""
        published = tuple(
            PublishedVersion(
                name,
                self._versions.version(name),
                self._versions.size_bytes(name),
                self.copies(name),
                self._versions.copies(name).delta_bytes,
            )
            for name in self._versions.names
        )
        versions = {name: each.version for name, each in self.read.items()}
        sizes = {name: each.bytes_by_way() for name, each in self.read.items()}
        return replace(stats, weights=published, fetched=versions, read_bytes=sizes)

    def _packed(self, name: str, encoded: Encoded) -> Payload:
        payload = self._messenger.payloads.pack(encoded, None, snapshot=True)
        if payload.size_bytes >= SHARED_BYTES and not payload.in_shared_memory:
            self._tell_once(name, payload.size_bytes)
        return payload

    def _announcement(
        self, name: str, version: int, layout: WeightsLayout, new: Packed, ranks: tuple[int, ...] = ()
    ) -> Announce:
        told = self._layouts.get(name)
        if told is None or told.layout != layout:
            told = self._layouts[name] = digested(layout)
        device = "" if isinstance(new, Payload) else new.device
        shards = Shards(
            self._publisher, told.digest, told.manifest, told.held_bytes, told.total_bytes, device, ranks
        )
        return Announce(name, version, shards, told.packed)

    def _begin_to_put(self, new: Announce, payload: Packed, delta: DeltaChoice) -> Promise[object]:
        done: Promise[object] = Promise()

        def put() -> None:
            before = self._versions.version(new.name)
            self._versions.put(new.name, new.version, payload, delta)
            # Until it is answered nobody knows which layouts the index has.
            is_known = self._announced.pop(new.name, None) == new.shards.digest
            announce = replace(new, layout=None) if is_known else new
            answer = self._messenger.request(self._home, ANNOUNCE, announce, reply_type=KeptVersions)
            answer.add_done_callback(partial(self._on_answer, new, before, done))

        self._transfers.hand_over(put, done.set_exception)
        return done

    def _on_answer(self, new: Announce, before: int, done: Promise[object], answer: Promise[Reply]) -> None:
        error = answer.exception()
        if error is not None:
            self._versions.withdraw(new.name, new.version, before)
            done.set_exception(error)
        else:
            if self._versions.version(new.name) == new.version:
                self._announced[new.name] = new.shards.digest
            done.set_result(self._versions.keep(answer.result().head))

    def _put(self, new: Announce, payload: Packed, delta: DeltaChoice) -> object:
        try:
            return self._begin_to_put(new, payload, delta).result(PUT_TIMEOUT_S)
        except TimeoutError as error:
            waiting_for = "this process's I/O thread and the job's home"
            raise CommTimeout("publish", entry_of(new.name), PUT_TIMEOUT_S, waiting_for) from error

    def _tell_once(self, name: str, size_bytes: int) -> None:
        if name in self._told:
            return
        self._told.add(name)
        arena = self._messenger.payloads.arena
        logger.warning(
            "no room in shared memory for the %d MiB of weights '%s': each reader gets them through a socket. Two "
            "versions have to fit into %d MiB, with all else that this machine's processes share; set "
            "RLINF_ARENA_MIB to more",
            -(-size_bytes >> 20),
            name,
            (0 if arena is None else arena.limit_bytes) >> 20,
        )


def _publishing_rank(session: Session, place: GroupMembership) -> PublishingRank:
    here, size = session.messenger.endpoint, place.members.world_size
    return PublishingRank(here, session.name, place.group, place.launched_ns, place.rank, size)


def open_weights(session: Session) -> Weights:
    """Make the publisher and fetcher of weights for a session; `session.service(open_weights)` is always the same."""
    devices = session.service(of_room("devices.devices:open_devices")) if has_room("devices") else None
    if session.home == session.messenger.endpoint:
        session.service(open_index)
    place = session.fact(GroupMembership)
    rank = None if place is None else _publishing_rank(session, place)
    weights = Weights(session.messenger, session.home, devices, rank)
    session.service(OwnActivity).add(weights.add_to)
    session.service(OwnStats).add(weights.add_stats)
    session.service(Levels).add(
        READ, lambda name: (session.name, weights.read.get(name), weights.copies(name))
    )
    return weights


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise CommError(f"weights have a name, a string that is not empty; it is {name!r}")
    return name


def _checked_version(name: str, version: int) -> int:
    try:
        number = operator.index(version)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise WeightsError(name, f"a version is a whole number from 0 to 2**63 - 1, not {version!r}")
    return number


def _checked_ranks(name: str, ranks: int | Sequence[int] | None) -> tuple[int, ...]:
    try:
        if ranks is None:
            return ()
        numbers = range(int(ranks)) if isinstance(ranks, int | Integral) else map(operator.index, ranks)
        found = tuple(sorted({*numbers}))
    except TypeError:
        found = ()
    if not found or min(found) < 0:
        raise WeightsError(name, f"ranks are how many publish, or their numbers, not {ranks!r}")
    return found
