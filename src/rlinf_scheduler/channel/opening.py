"""How a process comes to hold a channel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from rlinf_scheduler.channel.features import FEATURES
from rlinf_scheduler.channel.features.explain import ExplainFeature, watch_channel
from rlinf_scheduler.channel.refusals import why_unregistered
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.channel.spec import ChannelSpec
from rlinf_scheduler.comm.directory import Entry
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.rooms import of_room
from rlinf_scheduler.session import Session


class HeldChannel(Protocol):
    """A channel that this process holds."""

    @property
    def spec(self) -> ChannelSpec:
        """What it is."""

    @property
    def epoch(self) -> int:
        """Which process this is, of those that have held it; 0 of one that goes with its process."""

    def stop(self) -> None:
        """Hold it no more. From any thread."""


@dataclass(frozen=True, slots=True)
class ChannelOpening:
    """A channel that this process is to hold.

    Attributes:
        session: this process's.
        spec: the channel.
        about: what the directory shall know besides, msgpack-able.
        on_stopped: called once on the I/O thread when the channel was deleted or stopped: nobody needs this
            process for it any more.
        claims: further names that the channel takes in the directory.
        opened: to be completed with the channel, once that is known.
    """

    session: Session
    spec: ChannelSpec
    about: Mapping[str, Any] = field(default_factory=dict)
    on_stopped: Callable[[], None] | None = None
    claims: Sequence[str] = ()
    opened: Promise[HeldChannel] = field(default_factory=Promise)

    def begin(self) -> Promise[HeldChannel]:
        """Start the server of the channel in this process and make it known; the promise of the channel.

        Raises (from the promise):
            ChannelExists: a name is taken.
            ChannelJournalError: the journal of a durable channel is held by a process that lives, damaged, or
                another's.
            CheckpointError: `spec.restore` cannot be read, or does not fit.
        """
        if self.spec.durable or self.spec.restore:
            self.session.messenger.run_beside(self.read)
        else:
            self._open()
        return self.opened

    def read(self) -> None:
        """Read what the channel is to hold, in a thread of its own, and go on."""
        try:
            if self.spec.durable:
                of_room("durable.opening:DurableOpening")(self).read()
                return
            restore = of_room("durable.checkpoints:read_to_restore")(self.spec, self.session.messenger.disk)
            self.session.messenger.submit(partial(self._open, restore))
        except Exception as error:  # noqa: BLE001 - it belongs to the waiter for the channel
            self.opened.set_exception(error)

    def _open(self, restore: Callable[[ChannelServer], None] | None = None) -> None:
        session, spec = self.session, self.spec
        server = ChannelServer(session.messenger, spec, FEATURES)
        if restore is not None:
            restore(server)
        explain = partial(server.feature, ExplainFeature)
        forget = watch_channel(session, spec, lambda: explain().activity(), lambda: explain().stats())

        def stopped(tell: Callable[[], None] | None = self.on_stopped) -> None:
            forget()
            if tell is not None:
                tell()

        def free_names(then: Callable[[], None]) -> None:
            freed = [session.directory.unregister_async(name) for name in (*self.claims, spec.address)]
            # The directory answers in order.
            freed[-1].add_done_callback(lambda _: then())

        server.on_stopped, server.on_delete = stopped, free_names

        def settle(registered: Promise[Any]) -> None:
            error = registered.exception()
            if error is None:
                self.opened.set_result(server)
                return
            server.on_stopped = partial(stopped, None)  # it has never begun
            server.stop()
            self.opened.set_exception(why_unregistered(spec.name, error))

        entry = Entry(spec.address, session.messenger.endpoint, {**self.about, **spec.to_info()})
        session.directory.register_async(entry, self.claims).add_done_callback(settle)


def host_channel(
    session: Session, spec: ChannelSpec, on_stopped: Callable[[], None] | None = None
) -> HeldChannel:
    """Hold a channel in this process, and wait until it is known; raises as `ChannelOpening.begin`."""
    return ChannelOpening(session, spec, on_stopped=on_stopped).begin().result()
