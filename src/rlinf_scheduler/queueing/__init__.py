"""The channel's queues as a pure state machine: events in, instructions out; no clock, thread or I/O.

state.py         all queues of one channel, by name, and all clients: `apply` does what is asked of them
messages.py      what can be asked of them
queue_set.py     what is there of both, and what follows when something has changed
queue.py         one queue: its lines of getters and puts; contents.py: what it holds, and the sums of that
item.py          what a queue holds, and how it is called
operations.py    what a process does on a queue, as long as it is not over
wanted.py        what a get may ask for
instructions.py  what the shell around the state has to do

order: who is next
fifo.py          items in order, with their total weight; ranked.py: by priority; lanes.py: by version; groups.py
weights.py       what a weight may be, and sums of weights without rounding
gate: what may enter
gate.py          bounds; room_line.py: who waits for room of the whole channel
grant: how items leave
policies.py      lists the files of all policies beside these; what one may say: policy.py
balance.py       parts of steps that are even; cost.py: by what an item costs

snapshot.py      from the state to data; restoring.py: and back; saved_items.py: with numbers for payloads
tally.py         what all queues of a channel have in common
watch.py         what enters between two looks
ends.py          ends of queues and of the channel; losses.py: items whose bytes are gone
stats.py         a channel and its queues, as data for all who ask
surveying.py     makes that: of which queues how much, at once or part by part
producers.py     who still has something to put
direct.py        one client's operations that come by shortcuts, beside those that come the usual way
client.py        the other side: one process's operations, until each has ended
streams.py       what the two say to each other, where the server may die and come back
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import loader

if TYPE_CHECKING:  # each is loaded by those who use it only
    from rlinf_scheduler.queueing.client import (
        ClientInstruction,
        ClientState,
        End,
        Ending,
        Send,
        SendItem,
        SendOutcomeQuery,
    )
    from rlinf_scheduler.queueing.cost import Point, checked_table, sampled
    from rlinf_scheduler.queueing.direct import DirectOperations
    from rlinf_scheduler.queueing.fifo import WeightedFifo
    from rlinf_scheduler.queueing.groups import GroupName
    from rlinf_scheduler.queueing.instructions import (
        Accept,
        Bury,
        Deliver,
        Grant,
        Instruction,
        Reason,
        Refuse,
        Ripen,
    )
    from rlinf_scheduler.queueing.item import Item, QueueName, SubscriptionName, as_name, marks_tell
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
    from rlinf_scheduler.queueing.weights import check_batch_weight, check_maxsize, check_weight, rounded

_MODULES = {
    "Accept": "rlinf_scheduler.queueing.instructions",
    "Bury": "rlinf_scheduler.queueing.instructions",
    "ChannelData": "rlinf_scheduler.queueing.policies",
    "ChannelState": "rlinf_scheduler.queueing.state",
    "ChannelStats": "rlinf_scheduler.queueing.stats",
    "ChannelUser": "rlinf_scheduler.queueing.stats",
    "ClientInstruction": "rlinf_scheduler.queueing.client",
    "ClientState": "rlinf_scheduler.queueing.client",
    "Deliver": "rlinf_scheduler.queueing.instructions",
    "DirectOperations": "rlinf_scheduler.queueing.direct",
    "End": "rlinf_scheduler.queueing.client",
    "Ending": "rlinf_scheduler.queueing.client",
    "Grant": "rlinf_scheduler.queueing.instructions",
    "GroupName": "rlinf_scheduler.queueing.groups",
    "Instruction": "rlinf_scheduler.queueing.instructions",
    "Item": "rlinf_scheduler.queueing.item",
    "Limits": "rlinf_scheduler.queueing.wanted",
    "NOTHING": "rlinf_scheduler.queueing.queue",
    "NO_LIMITS": "rlinf_scheduler.queueing.wanted",
    "OperationOver": "rlinf_scheduler.queueing.policy",
    "Point": "rlinf_scheduler.queueing.cost",
    "ProducerPlaces": "rlinf_scheduler.queueing.producers",
    "Producers": "rlinf_scheduler.queueing.producers",
    "QueueDepth": "rlinf_scheduler.queueing.stats",
    "QueueName": "rlinf_scheduler.queueing.item",
    "QueueStats": "rlinf_scheduler.queueing.stats",
    "QueueSurvey": "rlinf_scheduler.queueing.surveying",
    "QueueUser": "rlinf_scheduler.queueing.stats",
    "Reason": "rlinf_scheduler.queueing.instructions",
    "Refuse": "rlinf_scheduler.queueing.instructions",
    "Resumption": "rlinf_scheduler.queueing.streams",
    "Ripen": "rlinf_scheduler.queueing.instructions",
    "Send": "rlinf_scheduler.queueing.client",
    "SendItem": "rlinf_scheduler.queueing.client",
    "SendOutcomeQuery": "rlinf_scheduler.queueing.client",
    "ServerStreams": "rlinf_scheduler.queueing.streams",
    "Snapshot": "rlinf_scheduler.queueing.snapshot",
    "Stream": "rlinf_scheduler.queueing.streams",
    "SurveyContext": "rlinf_scheduler.queueing.surveying",
    "SubscriptionName": "rlinf_scheduler.queueing.item",
    "UsersByQueue": "rlinf_scheduler.queueing.surveying",
    "Waiting": "rlinf_scheduler.queueing.stats",
    "WeightedFifo": "rlinf_scheduler.queueing.fifo",
    "as_name": "rlinf_scheduler.queueing.item",
    "check_batch_weight": "rlinf_scheduler.queueing.weights",
    "check_maxsize": "rlinf_scheduler.queueing.weights",
    "check_weight": "rlinf_scheduler.queueing.weights",
    "checked_table": "rlinf_scheduler.queueing.cost",
    "counts_of": "rlinf_scheduler.queueing.stats",
    "decode_rows": "rlinf_scheduler.queueing.stats",
    "depths_of": "rlinf_scheduler.queueing.stats",
    "encode_rows": "rlinf_scheduler.queueing.stats",
    "marks_tell": "rlinf_scheduler.queueing.item",
    "merged": "rlinf_scheduler.queueing.snapshot",
    "rounded": "rlinf_scheduler.queueing.weights",
    "sampled": "rlinf_scheduler.queueing.cost",
    "with_rest": "rlinf_scheduler.queueing.snapshot",
}

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
    "DirectOperations",
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
    __getattr__ = loader(globals(), _MODULES)
