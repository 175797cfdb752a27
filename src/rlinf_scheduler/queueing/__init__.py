"""The channel's queues as a pure state machine: events in, instructions out; no clock, thread or I/O.

state.py         all queues of one channel, by name, and all clients: `apply` does what is asked of them
messages.py      what can be asked of them, and what the shell around the state has to do then
queue_set.py     what is there of queues and clients, and what follows when something has changed
queue.py         one queue: its lines of getters and puts; contents.py: what it holds, and the sums of that
item.py          what a queue holds: how it is called, and what it weighs
operations.py    what a process does on a queue, as long as it is not over; wanted.py: what a get may ask for

order: who is next
order.py         items in order, with their total weight; out_of_turn.py: by priority and group; lanes.py: by version
gate: what may enter
gate.py          bounds; version_gate.py: versions
grant: how items leave
policies.py      lists the files of all policies beside these, and what is saved; what one may say: policy.py
balance.py       parts of steps that are even in what they cost; homes.py: to whom a group's next item goes

snapshot.py      from the state to data, and back; saved_items.py: with numbers for payloads
tally.py         what all queues of a channel have in common: counts, the line for room, what enters between two looks
ends.py          ends of queues and of the channel, and items whose bytes are gone
stats.py         a channel and its queues, as data for all who ask
surveying.py     makes that: of which queues how much, at once or part by part
producers.py     who still has something to put
client.py        the other side: one process's operations, until each has ended
streams.py       what the two say to each other, where the server may die and come back
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import declared

if TYPE_CHECKING:  # each is loaded by those who use it only
    from rlinf_scheduler.queueing.balance import Point, checked_table, sampled
    from rlinf_scheduler.queueing.client import (
        ClientInstruction,
        ClientState,
        End,
        Ending,
        Send,
        SendItem,
        SendOutcomeQuery,
    )
    from rlinf_scheduler.queueing.item import (
        Item,
        QueueName,
        SubscriptionName,
        as_name,
        check_batch_weight,
        check_maxsize,
        check_weight,
        marks_tell,
        rounded,
    )
    from rlinf_scheduler.queueing.messages import (
        Accept,
        Bury,
        Deliver,
        Grant,
        Instruction,
        Reason,
        Refuse,
        Ripen,
    )
    from rlinf_scheduler.queueing.order import WeightedFifo
    from rlinf_scheduler.queueing.out_of_turn import GroupName
    from rlinf_scheduler.queueing.policies import ChannelData
    from rlinf_scheduler.queueing.policy import OperationOver
    from rlinf_scheduler.queueing.producers import ProducerPlaces, Producers
    from rlinf_scheduler.queueing.queue import NOTHING
    from rlinf_scheduler.queueing.snapshot import Snapshot, merged, with_rest
    from rlinf_scheduler.queueing.state import ChannelState
    from rlinf_scheduler.queueing.stats import (
        ChannelStats,
        ChannelUser,
        QueueDepth,
        QueueStats,
        QueueUser,
        Waiting,
        counts_of,
        decode_rows,
        depths_of,
        encode_rows,
    )
    from rlinf_scheduler.queueing.streams import Resumption, ServerStreams, Stream
    from rlinf_scheduler.queueing.surveying import QueueSurvey, SurveyContext, UsersByQueue
    from rlinf_scheduler.queueing.wanted import NO_LIMITS, Limits

__all__ = [
    "NOTHING",
    "NO_LIMITS",
    "Accept",
    "Bury",
    "ChannelData",
    "ChannelState",
    "ChannelStats",
    "ChannelUser",
    "ClientInstruction",
    "ClientState",
    "Deliver",
    "End",
    "Ending",
    "Grant",
    "GroupName",
    "Instruction",
    "Item",
    "Limits",
    "OperationOver",
    "Point",
    "ProducerPlaces",
    "Producers",
    "QueueDepth",
    "QueueName",
    "QueueStats",
    "QueueSurvey",
    "QueueUser",
    "Reason",
    "Refuse",
    "Resumption",
    "Ripen",
    "Send",
    "SendItem",
    "SendOutcomeQuery",
    "ServerStreams",
    "Snapshot",
    "Stream",
    "SubscriptionName",
    "SurveyContext",
    "UsersByQueue",
    "Waiting",
    "WeightedFifo",
    "as_name",
    "check_batch_weight",
    "check_maxsize",
    "check_weight",
    "checked_table",
    "counts_of",
    "decode_rows",
    "depths_of",
    "encode_rows",
    "marks_tell",
    "merged",
    "rounded",
    "sampled",
    "with_rest",
]

if not TYPE_CHECKING:  # which would believe that every name is there
    __getattr__ = declared(globals())
