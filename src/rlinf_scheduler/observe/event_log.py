"""The last events of a job in words, and what they say of its nodes and of ranks that were lost. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlinf_scheduler import events as told
from rlinf_scheduler.events import Event
from rlinf_scheduler.observe.status import MAX_EVENTS, EventRecord
from rlinf_scheduler.wording import counted, seconds_text

INFO, WARNING, ERROR = "info", "warning", "error"
MAX_CHANNELS = 4096
# Workers' lines have a log of their own, and a group's launch tells of its ranks.
UNTOLD = (told.WorkerLogged, told.WorkerPrinted, told.WorkerStarted)


@dataclass(frozen=True, slots=True)
class LostRank:
    """A rank that was lost: why, and when, in seconds since 1970."""

    reason: str
    at_s: float


class EventLog:
    """What has happened in a job.

    Attributes:
        lost: the ranks that were lost and have not come back, by address.
        counts: how many events there were of each class, by its name.
        nodes: the state of each node that is not well, by rank, and why it is.

    >>> log = EventLog()
    >>> log.note(told.WorkerLost("actor", 1, "killed by signal 9"), 1000.0)
    >>> log.records()[0].text, log.lost["actor:1"].reason
    ('actor:1 was lost: killed by signal 9', 'killed by signal 9')
    >>> log.note(told.WorkerReturned("actor", 1, 0, 77, 1, 2.5), 1002.5)
    >>> log.lost
    {}
    """

    def __init__(self) -> None:
        self._records: deque[EventRecord] = deque(maxlen=MAX_EVENTS)
        # The last channels that were opened; whose process is lost is told under its name, as if that were a group.
        self._channels: OrderedDict[str, None] = OrderedDict()
        self.counts: Counter[str] = Counter()
        self.lost: dict[str, LostRank] = {}
        self.nodes: dict[int, tuple[str, str]] = {}

    def note(self, event: Event, at_s: float) -> None:
        """An event has happened, at a moment in seconds since 1970."""
        self.counts[type(event).__name__] += 1
        if not isinstance(event, UNTOLD):
            level, text = told_as(event)
            self._records.append(EventRecord(at_s, type(event).__name__, text, level))
        match event:
            case told.ChannelOpened(name):
                self._channels[name] = None
                if len(self._channels) > MAX_CHANNELS:
                    self._channels.popitem(last=False)
            case told.WorkerLost(group, rank, reason) if group not in self._channels:
                self.lost[f"{group}:{rank}"] = LostRank(reason, at_s)
            case told.WorkerStarted(group, rank) | told.WorkerReturned(group, rank):
                self.lost.pop(f"{group}:{rank}", None)
            case told.NodeLost(rank, _, _, reason):
                self.nodes[rank] = "lost", reason
            case told.NodeUnresponsive(rank, _, _, reason):
                self.nodes[rank] = "unresponsive", reason
            case told.NodeJoined(rank) | told.NodeResponsive(rank):
                self.nodes.pop(rank, None)

    def records(self) -> tuple[EventRecord, ...]:
        """The last events, the newest last."""
        return tuple(self._records)

    def forget_lost(self, before_s: float) -> None:
        """Ranks that were lost before a moment are not told of any more: their groups have ended, perhaps."""
        self.lost = {address: lost for address, lost in self.lost.items() if lost.at_s >= before_s}


def told_as(event: Event) -> tuple[str, str]:
    """An event's level, and it in a line."""
    level, say = _SAID.get(type(event), (INFO, repr))
    return level, say(event).partition("\n")[0]


def _of_rank(verb: str) -> Callable[[Any], str]:
    return lambda event: f"{event.group}:{event.rank} {verb}: {event.reason}"


_SAID: dict[type, tuple[str, Callable[[Any], str]]] = {
    told.NodeJoined: (
        INFO,
        lambda event: (
            f"node {event.node_rank} ({event.ip}) joined with {counted(event.num_accelerators, 'accelerator')}"
        ),
    ),
    told.NodeLost: (ERROR, lambda event: event.reason),
    told.JobLost: (ERROR, lambda event: f"this process leaves the job: {event.reason}"),
    told.NodeUnresponsive: (WARNING, lambda event: event.reason),
    told.NodeResponsive: (
        INFO,
        lambda event: (
            f"node {event.node_rank} ({event.ip}) answers again, after {seconds_text(event.silent_s)}"
        ),
    ),
    told.TransportFellBack: (WARNING, lambda event: event.reason),
    told.GroupLaunched: (
        INFO,
        lambda event: (
            f"{event.group}: {counted(event.num_workers, 'rank')} launched in {seconds_text(event.took_s)}"
        ),
    ),
    told.WorkerLost: (ERROR, _of_rank("was lost")),
    told.WorkerReturned: (
        INFO,
        lambda event: (
            f"{event.group}:{event.rank} is back after {seconds_text(event.after_s)}, on node {event.node_rank}"
        ),
    ),
    told.WorkerGivenUp: (ERROR, _of_rank("does not come back")),
    told.WorkerUnresponsive: (WARNING, _of_rank("is unresponsive")),
    told.WorkerResponsive: (
        INFO,
        lambda event: f"{event.group}:{event.rank} answers again, after {seconds_text(event.silent_s)}",
    ),
    told.ChannelOpened: (INFO, lambda event: f"channel '{event.name}' is open, held by {event.process}"),
    told.ChannelRestored: (
        WARNING,
        lambda event: (
            f"channel '{event.name}' is held by {event.process} now, "
            f"after {seconds_text(event.after_s)} without a process"
        ),
    ),
    told.Stalled: (
        WARNING,
        lambda event: (
            f"{event.group or event.channel}: {event.operation} takes {seconds_text(event.waited_s)}"
        ),
    ),
}
