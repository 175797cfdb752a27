"""Channels: named queues between workers, and what their operations return."""

from typing import TYPE_CHECKING, Any

from rlinf_scheduler.lazy import loader, mirror

if TYPE_CHECKING:
    from rlinf.scheduler.channel.channel_worker import ChannelWorker as ChannelWorker
    from rlinf.scheduler.channel.channel_worker import WeightedItem as WeightedItem
    from rlinf_scheduler.channel import *  # noqa: F403

_OWN = {
    "ChannelWorker": "rlinf.scheduler.channel.channel_worker",
    "WeightedItem": "rlinf.scheduler.channel.channel_worker",
}
_own, _others = loader(globals(), _OWN), mirror(globals(), "rlinf_scheduler.channel")


def __getattr__(name: str) -> Any:
    return _own(name) if name in _OWN else _others(name)
