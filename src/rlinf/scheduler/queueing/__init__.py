"""The channel's queues as a pure state machine: events in, instructions out; no clock, thread or I/O.

weights.py       what a weight may be, and sums of weights without rounding
ranked.py        items by priority
wanted.py        what a batch has to be
item.py          what a queue holds
fifo.py          items in order, with their total weight
named_queue.py   one queue: its items, its line of getters, its line of puts, its bound
state.py         all queues of one channel, by name, and all clients, by id
direct.py        one client's operations that come by shortcuts, beside those that come the usual way
client.py        the other side: one process's operations, until each has ended
balance.py       how to divide items evenly
sharding.py      a queue's items for data-parallel ranks, step by step
producers.py     who still has something to put
instructions.py  what the shell around the state has to do
"""

from __future__ import annotations

from rlinf.scheduler.queueing.client import (
    ClientInstruction,
    ClientState,
    Confirm,
    End,
    Ending,
    Fill,
    Recall,
    Send,
    Withdraw,
)
from rlinf.scheduler.queueing.direct import DirectOperations
from rlinf.scheduler.queueing.fifo import WeightedFifo
from rlinf.scheduler.queueing.instructions import Accept, Deliver, Grant, Instruction, Reason, Refuse, Ripen
from rlinf.scheduler.queueing.item import Item
from rlinf.scheduler.queueing.named_queue import QueueDepth, QueueName
from rlinf.scheduler.queueing.producers import Producers
from rlinf.scheduler.queueing.sharding import POLICIES, Part, ShardPlan
from rlinf.scheduler.queueing.state import ChannelState
from rlinf.scheduler.queueing.wanted import NO_LIMITS, Limits
from rlinf.scheduler.queueing.weights import check_batch_weight, check_maxsize, check_weight, rounded

__all__ = [
    "NO_LIMITS",
    "POLICIES",
    "Accept",
    "ChannelState",
    "ClientInstruction",
    "ClientState",
    "Confirm",
    "Deliver",
    "DirectOperations",
    "End",
    "Ending",
    "Fill",
    "Grant",
    "Instruction",
    "Item",
    "Limits",
    "Part",
    "Producers",
    "QueueDepth",
    "QueueName",
    "Reason",
    "Recall",
    "Refuse",
    "Ripen",
    "Send",
    "ShardPlan",
    "WeightedFifo",
    "Withdraw",
    "check_batch_weight",
    "check_maxsize",
    "check_weight",
    "rounded",
]
