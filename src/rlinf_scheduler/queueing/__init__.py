"""The channel's queues as a pure state machine: events in, instructions out; no clock, thread or I/O.

state.py         all queues of one channel, by name, and all clients, by id
queue_set.py     what is there of both, and what follows when something has changed
queue.py         one queue: its lines of getters and puts; contents.py: what it holds, and the sums of that
item.py          what a queue holds, and how it is called
operations.py    what a process does on a queue, as long as it is not over
wanted.py        what a get may ask for
instructions.py  what the shell around the state has to do

order: who is next
fifo.py          items in order, with their total weight; ranked.py: by priority; lanes.py: by version; groups.py
weights.py       what a weight may be, and sums of weights without rounding
grant: how items leave
leases.py        items that a consumer has until it says what became of them; dead letters
sharding.py      parts of steps for data-parallel ranks; balance.py: divided evenly; cost.py: by what an item costs
taps.py          subscriptions: queues that see what enters others
gate: what may enter
gate.py          bounds; room_line.py: who waits for room of the whole channel
admission.py     how old items may be when they are taken: slots, versions

snapshot.py      from the state to data; restoring.py: and back
tally.py         what all queues of a channel have in common
watch.py         what enters between two looks
stats.py         a channel and its queues, as data for all who ask
surveying.py     makes that: of which queues how much, at once or part by part
producers.py     who still has something to put
direct.py        one client's operations that come by shortcuts, beside those that come the usual way
client.py        the other side: one process's operations, until each has ended
streams.py       what the two say to each other, where the server may die and come back
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
    SendOutcomeQuery,
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
    Part,
    Reason,
    Refuse,
    Ripen,
    StartClock,
    StopClock,
)
from rlinf_scheduler.queueing.item import Item, QueueName, Tapped, as_name, marks_tell
from rlinf_scheduler.queueing.leases import BuriedItem
from rlinf_scheduler.queueing.producers import Places, Producers
from rlinf_scheduler.queueing.queue import NOTHING
from rlinf_scheduler.queueing.sharding import POLICIES, ShardPlan
from rlinf_scheduler.queueing.snapshot import ChannelData, QueueData, Snapshot, merged, with_rest
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
from rlinf_scheduler.queueing.surveying import Asked, QueueSurvey, UsersByQueue
from rlinf_scheduler.queueing.taps import TapTerms
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
    "ChannelData",
    "ChannelState",
    "ChannelStats",
    "ChannelUser",
    "ClientInstruction",
    "ClientState",
    "Confirm",
    "Deliver",
    "DirectOperations",
    "End",
    "Ending",
    "Grant",
    "GroupName",
    "Instruction",
    "Item",
    "LeaseTerms",
    "Limits",
    "OnLease",
    "OnSlot",
    "Part",
    "Places",
    "Point",
    "Producers",
    "QueueData",
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
    "SendWithdraw",
    "ServerStreams",
    "ShardPlan",
    "Snapshot",
    "StartClock",
    "StopClock",
    "Stream",
    "TapTerms",
    "Tapped",
    "UsersByQueue",
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
