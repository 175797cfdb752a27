"""The versions of weights that this process has for others: those that the index at the job's home tells it to keep."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from rlinf_scheduler.comm.device import Devices, StagedPayload
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.replication import AnswerKind, Key, Publisher, ReaderAnswer
from rlinf_scheduler.comm.replication.publisher import give
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.errors import WeightsError
from rlinf_scheduler.weights.records import (
    FETCH,
    KEEP,
    NO_VERSION,
    SERVICE,
    FetchWeights,
    KeptVersions,
    check_growth,
)

Packed: TypeAlias = "Payload | StagedPayload"


@dataclass(slots=True)
class _Version:
    """What is here of one version.

    Attributes:
        payload: it, in host memory; None as long as nobody wants it there.
        staged: it, on a device; None if it is not there.
        unserved: questions of readers that wait until it is in host memory.
    """

    payload: Payload | None = None
    staged: StagedPayload | None = None
    unserved: list[Request] = field(default_factory=list)


class Versions:
    """Gives readers the versions that this process keeps. All but `version` is on the I/O thread."""

    def __init__(self, messenger: Messenger, devices: Devices) -> None:
        self._messenger = messenger
        self._devices = devices
        self._publisher = Publisher(messenger, SERVICE)
        self._versions: dict[str, dict[int, _Version]] = {}
        self._newest: dict[str, int] = {}
        messenger.serve(FETCH, self._serve, FetchWeights)
        messenger.serve(KEEP, self._on_keep, KeptVersions)

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

    def put(self, name: str, version: int, new: Packed) -> None:
        """Make a version one that readers can get.

        Raises:
            WeightsError: the version does not grow.
        """
        check_growth(name, self.version(name), version)
        self._versions.setdefault(name, {})[version] = there = _Version()
        self._newest[name] = version
        if isinstance(new, StagedPayload):
            there.staged = new
        else:
            self._publish(Key(name, version), there, new)

    def withdraw(self, name: str, version: int, before: int) -> None:
        """Undo a `put` that was refused; `before` was the newest version then."""
        if (
            version in self._versions[name]
        ):  # and not given up meanwhile, as a later launch has taken the name over
            self._drop(name, version)
        if self._newest[name] == version:
            self._newest[name] = before

    def keep(self, keep: KeptVersions) -> list[_Version]:
        """Forget the versions that nobody needs any more; they come back."""
        there = self._versions.get(keep.name, {})
        over = [each for each in there if each <= keep.up_to and each not in keep.versions]
        return [self._drop(keep.name, version) for version in over]

    def _on_keep(self, notice: Request) -> None:
        self.keep(notice.head)

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

    def _serve(self, request: Request) -> None:
        asked: FetchWeights = request.head
        version = self._versions.get(asked.name, {}).get(asked.version)
        if request.is_cancelled:
            return
        if version is None:
            _tell_over(request)
        elif version.staged is not None:
            reads_ours = partial(self._serve_staged, version, version.staged, request)
            self._messenger.payloads.when_ready(asked.want.reader, reads_ours)
        else:
            key = Key(asked.name, asked.version)
            self._publisher.answer(request, key, asked.want, lambda: _tell_over(request))

    def _serve_staged(self, version: _Version, staged: StagedPayload, request: Request) -> None:
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
        self, key: Key, version: _Version, staged: StagedPayload, copied: Payload | BaseException
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
