"""The weights that this process publishes: the newest version of each name, and who waits for a newer one."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.peer import Request
from rlinf.scheduler.comm.replication import AnswerKind, Key, Publisher, ReaderAnswer
from rlinf.scheduler.comm.shm.parcel import Parcel
from rlinf.scheduler.errors import WeightsError
from rlinf.scheduler.weights.records import FETCH, NO_VERSION, SERVICE, VERSIONS, FetchWeights


@dataclass(slots=True)
class _Weights:
    """What is published under one name; `waiting`: questions of readers that have heard what there is."""

    version: int = NO_VERSION
    parcel: Parcel | None = None
    waiting: list[Request] = field(default_factory=list)


class Versions:
    """Gives readers the newest version. All but `version` and `expect` is on the I/O thread.

    Args:
        messenger: this process's messenger.
    """

    def __init__(self, messenger: Messenger) -> None:
        self._messenger = messenger
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
        return 0 if weights is None or weights.parcel is None else weights.parcel.size_bytes

    def put(self, name: str, version: int, parcel: Parcel) -> Parcel | None:
        """Make this the version that readers get from now on; the one before comes back.

        Raises:
            WeightsError: the version does not grow.
        """
        weights = self._weights[name]
        check_growth(name, weights.version, version)
        before, old = weights.parcel, Key(name, weights.version)
        weights.version, weights.parcel = version, parcel
        self._publisher.publish(Key(name, version), parcel, replicated=True)
        self._publisher.release(old)
        waiting, weights.waiting = weights.waiting, []
        for reader in waiting:
            self._serve(reader)
        return before

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
        if weights.parcel is not None and weights.version >= asked.min_version:
            # If it is replaced before it is answered, the reader gets what replaced it.
            self._publisher.answer(request, key, asked.want, lambda: self._serve(request))
        elif asked.want.heard == weights.version:
            self._park(weights, request)
        else:
            # Whoever waits knows what it waits for, and can say so at its deadline.
            request.reply(ReaderAnswer(AnswerKind.WAIT, key))

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
