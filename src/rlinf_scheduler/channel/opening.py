"""How a process comes to hold a channel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rlinf_scheduler.channel.checkpoint import SavedChannel, read_channel
from rlinf_scheduler.channel.durable import DurableChannel
from rlinf_scheduler.channel.durable_opening import open_durable
from rlinf_scheduler.channel.features import FEATURES
from rlinf_scheduler.channel.features.checkpoints import restore
from rlinf_scheduler.channel.features.explain import Explain
from rlinf_scheduler.channel.features.recording import end_recording, is_behind
from rlinf_scheduler.channel.refusals import why_unregistered
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.channel.spec import ChannelSpec
from rlinf_scheduler.channel.watching import watch_channel
from rlinf_scheduler.comm.directory import Entry
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.session import Session

HeldChannel = ChannelServer | DurableChannel


def open_channel(
    session: Session,
    spec: ChannelSpec,
    about: Mapping[str, Any] | None = None,
    on_stopped: Callable[[], None] | None = None,
    claims: Sequence[str] = (),
) -> Promise[HeldChannel]:
    """Start the server of a channel in this process and make it known; the promise of the server.

    Args:
        session: this process's.
        spec: the channel.
        about: what the directory shall know besides, msgpack-able.
        on_stopped: called once on the I/O thread when the channel was deleted or stopped: nobody needs this
            process for it any more.
        claims: further names that the channel takes in the directory.

    Raises (from the promise):
        ChannelExists: a name is taken.
        ChannelJournalError: as of `open_durable`.
        CheckpointError: `spec.restore` cannot be read, or does not fit.
    """
    if spec.durable:
        durable: Promise[Any] = open_durable(session, spec, about, on_stopped, claims)
        return durable
    opened: Promise[HeldChannel] = Promise()
    opening = partial(_open, session, spec, about or {}, on_stopped, claims, opened)
    if spec.restore:
        run_beside_in_time(session.messenger.call_later, _read, session, spec, opened, opening)
    else:
        opening(None)
    return opened


def _read(
    session: Session,
    spec: ChannelSpec,
    opened: Promise[HeldChannel],
    opening: Callable[[SavedChannel], None],
) -> None:
    """Read what a channel is to hold, on a thread of its own."""
    try:
        saved = read_channel(spec.restore)
        saved.check_fits(spec)
    except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the channel
        opened.set_exception(error)
    else:
        session.messenger.submit(partial(opening, saved))


def _open(
    session: Session,
    spec: ChannelSpec,
    about: Mapping[str, Any],
    on_stopped: Callable[[], None] | None,
    claims: Sequence[str],
    opened: Promise[HeldChannel],
    saved: SavedChannel | None,
) -> None:
    server = ChannelServer(session.messenger, spec, FEATURES)
    if saved is not None:
        restore(server, saved)
    explain = partial(server.feature, Explain)
    forget = watch_channel(session, spec, lambda: explain().activity(), lambda: explain().stats())

    def records() -> bool:
        return is_behind(server)

    session.messenger.stay_while(records)

    def stopped(tell: Callable[[], None] | None = on_stopped) -> None:
        forget()
        end_recording(server, partial(left, tell))

    def left(tell: Callable[[], None] | None) -> None:
        session.messenger.off_stay(records)
        if tell is not None:
            tell()

    def free_names(then: Callable[[], None]) -> None:
        freed = [session.directory.unregister_async(name) for name in (*claims, spec.address)]
        # The directory answers in order. Whoever deletes it may read what was recorded next.
        freed[-1].add_done_callback(lambda _: end_recording(server, then))

    server.on_stopped, server.on_delete = stopped, free_names

    def settle(registered: Promise[Any]) -> None:
        error = registered.exception()
        if error is None:
            opened.set_result(server)
            return
        server.on_stopped = partial(stopped, None)  # it has never begun
        server.stop()
        opened.set_exception(why_unregistered(spec.name, error))

    entry = Entry(spec.address, session.messenger.endpoint, {**about, **spec.to_info()})
    session.directory.register_async(entry, claims).add_done_callback(settle)


def host_channel(
    session: Session,
    spec: ChannelSpec,
    about: Mapping[str, Any] | None = None,
    on_stopped: Callable[[], None] | None = None,
) -> HeldChannel:
    """As `open_channel`, and wait until it is known.

    Raises:
        ChannelExists: the name is taken.
        ChannelJournalError, CheckpointError: as of `open_channel`.
    """
    return open_channel(session, spec, about, on_stopped).result()
