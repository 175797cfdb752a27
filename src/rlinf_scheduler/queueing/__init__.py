"""The channel's queues as a pure state machine: events in, instructions out; no clock, thread or I/O."""

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
