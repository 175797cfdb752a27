"""The worker that holds channels: the one process that their items go through."""

from __future__ import annotations

import gc
from functools import partial

from msgspec.structs import replace

from rlinf_scheduler.channel.node_holder import NodeHolder
from rlinf_scheduler.channel.opening import ChannelOpening, HeldChannel
from rlinf_scheduler.channel.starting import CHANNEL_STOPPED, HOLD_CHANNEL, ChannelStopped, HoldChannel
from rlinf_scheduler.comm import Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.host.info import group_entry
from rlinf_scheduler.observe.own_stats import OwnStats
from rlinf_scheduler.observe.process_stats import CHANNEL_PROCESSES
from rlinf_scheduler.rooms import has_room, of_room
from rlinf_scheduler.session import Session, current_session

# In a process of its own: so many objects more than went, and not 700, let the garbage collector look for rings.
COLLECT_AFTER = 10_000


class Channels:
    """Holds channels, each of the address `channel_name:0`; a group of one rank.

    Its calls and its channels' operations do not wait for each other: channels live on the messenger's thread. The
    job's home says which channels it holds, and ends it. It also holds items of its node's producers, for channels
    that are elsewhere.
    """

    def __init__(self, session: Session | None = None) -> None:
        if session is None:
            if has_room("durable"):  # the first save is not to load it on the I/O thread
                of_room("durable.checkpoints:CheckpointsFeature")
            _collect_seldom()
        self._session = session or current_session()
        self._session.service(NodeHolder)
        self._session.service(OwnStats).add(lambda stats: replace(stats, kind=CHANNEL_PROCESSES))
        self._session.messenger.serve(HOLD_CHANNEL, self._on_hold, HoldChannel)

    def _on_hold(self, request: Request) -> None:
        wanted: HoldChannel = request.head
        spec = wanted.spec
        opening = ChannelOpening(
            self._session,
            spec,
            {"placement": wanted.placement},
            partial(self._tell_home, spec.channel_id),
            [group_entry(spec.name)],
        )
        opening.begin().add_done_callback(partial(_answer, request))

    def _tell_home(self, channel_id: str) -> None:
        self._session.messenger.notify(self._session.home, CHANNEL_STOPPED, ChannelStopped(channel_id))


def _collect_seldom() -> None:
    """Items are never decoded here, and what is done with one leaves no ring; what is loaded stays loaded."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])


def _answer(request: Request, opened: Promise[HeldChannel]) -> None:
    error = opened.exception(0)
    if error is None:
        request.reply(opened.result(0).epoch)
    else:
        request.fail(error)
