"""The weights that this process publishes: the newest version of each name, and who waits for a newer one."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from rlinf_scheduler.comm.device import Devices, StagedPayload
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.replication import AnswerKind, Key, Publisher, ReaderAnswer
from rlinf_scheduler.comm.replication.publisher import give
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.errors import WeightsError
from rlinf_scheduler.weights.records import FETCH, NO_VERSION, SERVICE, VERSIONS, FetchWeights


@dataclass(slots=True)
class _Weights:
    """What is published under one name.

    Attributes:
        version: the newest version.
        payload: it, in host memory; None as long as nobody wants it there.
        staged: it, on a device; None if it is not there.
        waiting: questions of readers that have heard what there is.
        unserved: questions of readers that wait until it is in host memory.
    """

    version: int = NO_VERSION
    payload: Payload | None = None
    staged: StagedPayload | None = None
    waiting: list[Request] = field(default_factory=list)
    unserved: list[Request] = field(default_factory=list)


class Versions:
    """Gives readers the newest version. All but `version` and `expect` is on the I/O thread.

    Args:
        messenger: this process's messenger.
        devices: what this process shares on devices.
    """

    def __init__(self, messenger: Messenger, devices: Devices) -> None:
        self._messenger = messenger
        self._devices = devices
        self._publisher = Publisher(messenger, SERVICE)
        self._weights: dict[str, _Weights] = {}
        messenger.serve(FETCH, self._on_fetch, FetchWeights)
        messenger.serve(VERSIONS, self._on_versions, None)

    def expect(self, name: str) -> None:
        """Let readers of `name` wait for a version from now on; from any thread."""
        self._weights.setdefault(name, _Weights())

    def version(self, name: str) -> int:
        """The present version; NO_VERSION if there is none; from any thread."""
        weights = self._weights.get(name)
        return NO_VERSION if weights is None else weights.version

    def size_bytes(self, name: str) -> int:
        """The size of the present version; 0 if there is none."""
        weights = self._weights.get(name)
        there = None if weights is None else weights.staged or weights.payload
        return 0 if there is None else there.size_bytes

    def put(
        self, name: str, version: int, new: Payload | StagedPayload
    ) -> tuple[Payload | None, StagedPayload | None]:
        """Make this the version that readers get from now on; the one before comes back.

        Raises:
            WeightsError: the version does not grow.
        """
        weights = self._weights[name]
        check_growth(name, weights.version, version)
        before, old = (weights.payload, weights.staged), Key(name, weights.version)
        weights.version, weights.payload, weights.staged = version, None, None
        if isinstance(new, StagedPayload):
            weights.staged = new
        else:
            self._publish(name, weights, new)
        self._publisher.release(old)
        readers = weights.waiting + weights.unserved
        weights.waiting, weights.unserved = [], []
        for reader in readers:
            self._serve(reader)
        return before

    def _publish(self, name: str, weights: _Weights, payload: Payload) -> None:
        weights.payload = payload
        self._publisher.publish(Key(name, weights.version), payload, replicated=True)

    def _on_fetch(self, request: Request) -> None:
        asked: FetchWeights = request.head
        if asked.name not in self._weights:
            raise WeightsError(asked.name, f"'{self._messenger.name}' does not publish them")
        self._serve(request)

    def _on_versions(self, request: Request) -> None:
        request.reply({name: weights.version for name, weights in self._weights.items()})

    def _serve(self, request: Request) -> None:
        asked: FetchWeights = request.head
        weights = self._weights[asked.name]
        key = Key(asked.name, weights.version)
        if request.is_cancelled:
            return
        if asked.exact and weights.version > asked.min_version:
            request.fail(WeightsError(asked.name, self._why_over(asked.min_version, weights.version)))
        elif weights.version != NO_VERSION and weights.version >= asked.min_version:
            # If it is replaced before it is answered, the reader gets what replaced it.
            if weights.staged is not None:
                reads_ours = partial(self._serve_staged, weights, weights.staged, request)
                self._messenger.payloads.when_ready(asked.want.reader, reads_ours)
            else:
                self._publisher.answer(request, key, asked.want, lambda: self._serve(request))
        elif asked.want.heard == weights.version:
            self._park(weights, request)
        else:
            # A waiting reader knows what it waits for, and can say so at its deadline.
            request.reply(ReaderAnswer(AnswerKind.WAIT, key))

    def _why_over(self, wanted: int, present: int) -> str:
        publisher = self._messenger.name
        return (
            f"version {wanted} is over: '{publisher}' publishes version {present} now, and keeps no older one"
        )

    def _serve_staged(self, weights: _Weights, staged: StagedPayload, request: Request) -> None:
        asked: FetchWeights = request.head
        if weights.staged is not staged:
            self._serve(request)
        elif request.is_cancelled:
            return
        elif staged.goes_to(asked.want.reader, asked.devices) and not asked.want.unreadable:
            staged.given_to(asked.want.reader)
            answer = ReaderAnswer(AnswerKind.HERE, Key(asked.name, weights.version))
            give(request, answer, staged.payload, asked.want.reader)
        elif weights.payload is not None:
            key = Key(asked.name, weights.version)
            self._publisher.answer(request, key, asked.want, lambda: self._serve(request))
        else:
            weights.unserved.append(request)
            if len(weights.unserved) == 1:
                copied = partial(self._on_copied, asked.name, weights, staged)
                self._devices.copy_out(f"weights '{asked.name}'", staged, copied)

    def _on_copied(
        self, name: str, weights: _Weights, staged: StagedPayload, copied: Payload | BaseException
    ) -> None:
        if weights.staged is not staged:
            return
        readers, weights.unserved = weights.unserved, []
        if isinstance(copied, BaseException):
            for reader in readers:
                reader.fail(WeightsError(name, f"they cannot be copied off {staged.device}: {copied}"))
            return
        self._publish(name, weights, copied)
        for reader in readers:
            self._serve(reader)

    def _park(self, weights: _Weights, reader: Request) -> None:
        def forget() -> None:
            if reader in weights.waiting:
                weights.waiting.remove(reader)

        weights.waiting.append(reader)
        reader.on_cancel(forget)


def check_growth(name: str, before: int, version: int) -> None:
    """Make sure that a version may follow another one.

    Raises:
        WeightsError: it may not.
    """
    if version <= before:
        raise WeightsError(name, f"version {version} cannot follow version {before}: versions grow")
