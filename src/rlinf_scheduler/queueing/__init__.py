"""The channel's queues as a pure state machine: events in, instructions out; no clock, thread or I/O.

weights.py       what a weight may be, and sums of weights without rounding
ranked.py        items by priority
wanted.py        what a batch has to be
leases.py        items that a consumer has until it says what became of them; dead letters
item.py          what a queue holds
fifo.py          items in order, with their total weight
lanes.py         items in the order of the latest versions that may take them
admission.py     how old items may be when they are taken: slots, versions
groups.py        which items belong together
operations.py    what a process does on a queue, as long as it is not over
tally.py         what all queues of a channel have in common
named_queue.py   one queue, made of:
bounded.py       what it holds, and whether there is room for more
entering.py      how items enter: its line of puts
matching.py      what the first getter gets
serving.py       its line of getters, and who is told what
running.py       what is alike, and comes in a row, as a run
queue_name.py    how a queue is called
tap_queue.py     what a subscription reads: a queue that sees what enters others
stats.py         a channel and its queues, as data for all who ask
surveying.py     makes that: of which queues how much, at once or part by part
state.py         all queues of one channel, by name, and all clients, by id
direct.py        one client's operations that come by shortcuts, beside those that come the usual way
client.py        the other side: one process's operations, until each has ended
streams.py       what the two say to each other, where the server may die and come back
cost.py          what an item costs, by its weight
balance.py       how to divide items evenly
sharding.py      a queue's items for data-parallel ranks, step by step
producers.py     who still has something to put
records.py       all of it as plain records
snapshot.py      to records
restoring.py     and back
watch.py         what enters between two looks
instructions.py  what the shell around the state has to do
"""

from __future__ import annotations

from rlinf_scheduler.queueing.client import (
    ClientInstruction,
    ClientState,
    Confirm,
    End,
    Ending,
    Send,
    SendItem,
    SendRecall,
    SendWithdraw,
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
    OnLease,
    OnSlot,
    Reason,
    Refuse,
    Ripen,
    StartClock,
    StopClock,
)
from rlinf_scheduler.queueing.item import Item, marks_tell
from rlinf_scheduler.queueing.leases import BuriedItem
from rlinf_scheduler.queueing.producers import Producers
from rlinf_scheduler.queueing.queue_name import QueueName, Tapped, as_name
from rlinf_scheduler.queueing.records import (
    DeadRecord,
    DeliveryRecord,
    ItemRecord,
    PartRecord,
    ProducersRecord,
    QueueRecord,
    ShardingRecord,
    StateRecord,
)
from rlinf_scheduler.queueing.serving import NOTHING
from rlinf_scheduler.queueing.sharding import POLICIES, Part, ShardPlan
from rlinf_scheduler.queueing.snapshot import Snapshot, merged, with_rest
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import (
    ChannelStats,
    ChannelUser,
    QueueDepth,
    QueueStats,
    QueueUser,
    Waiting,
)
from rlinf_scheduler.queueing.streams import Resumption, ServerStreams, Stream
from rlinf_scheduler.queueing.surveying import Asked, QueueSurvey
from rlinf_scheduler.queueing.tap_queue import TapTerms
from rlinf_scheduler.queueing.wanted import NO_LIMITS, LeaseTerms, Limits
from rlinf_scheduler.queueing.weights import check_batch_weight, check_maxsize, check_weight, rounded

__all__ = [
    "NOTHING",
    "NO_LIMITS",
    "POLICIES",
    "Accept",
    "Asked",
    "BuriedItem",
    "Bury",
    "ChannelState",
    "ChannelStats",
    "ChannelUser",
    "ClientInstruction",
    "ClientState",
    "Confirm",
    "DeadRecord",
    "Deliver",
    "DeliveryRecord",
    "DirectOperations",
    "End",
    "Ending",
    "Grant",
    "GroupName",
    "Instruction",
    "Item",
    "ItemRecord",
    "LeaseTerms",
    "Limits",
    "OnLease",
    "OnSlot",
    "Part",
    "PartRecord",
    "Point",
    "Producers",
    "ProducersRecord",
    "QueueDepth",
    "QueueName",
    "QueueRecord",
    "QueueStats",
    "QueueSurvey",
    "QueueUser",
    "Reason",
    "Refuse",
    "Resumption",
    "Ripen",
    "Send",
    "SendItem",
    "SendRecall",
    "SendWithdraw",
    "ServerStreams",
    "ShardPlan",
    "ShardingRecord",
    "Snapshot",
    "StartClock",
    "StateRecord",
    "StopClock",
    "Stream",
    "TapTerms",
    "Tapped",
    "Waiting",
    "WeightedFifo",
    "as_name",
    "check_batch_weight",
    "check_maxsize",
    "check_weight",
    "checked_table",
    "marks_tell",
    "merged",
    "rounded",
    "sampled",
    "with_rest",
]
