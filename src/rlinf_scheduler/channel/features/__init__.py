"""Everything that a channel's server does; each file is a feature, which registers itself at a server."""

from __future__ import annotations

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.features.ends import EndsFeature
from rlinf_scheduler.channel.features.explain import ExplainFeature
from rlinf_scheduler.channel.features.leases import LeasesFeature, QuestionsFeature
from rlinf_scheduler.channel.features.operations import OperationsFeature
from rlinf_scheduler.channel.features.shortcuts import ShortcutsFeature
from rlinf_scheduler.channel.features.successors import ProducersFeature, SubscriptionsFeature
from rlinf_scheduler.channel.server import ChannelServer, Features
from rlinf_scheduler.queueing.leases import StartClock, StopClock
from rlinf_scheduler.queueing.messages import Bury
from rlinf_scheduler.queueing.taps import Vacate
from rlinf_scheduler.rooms import of_room


def _checkpoints(server: ChannelServer) -> object:
    return server.feature(of_room("durable.checkpoints:CheckpointsFeature"))


FEATURES: Features = {
    wire.Put: OperationsFeature,
    wire.Puts: OperationsFeature,
    wire.Fill: OperationsFeature,
    wire.Gets: OperationsFeature,
    wire.Resend: OperationsFeature,
    wire.QueryOutcome: ShortcutsFeature,
    control_wire.Invite: ShortcutsFeature,
    control_wire.Close: EndsFeature,
    control_wire.EndQueue: EndsFeature,
    StartClock: LeasesFeature,
    StopClock: LeasesFeature,
    control_wire.ListDead: LeasesFeature,
    control_wire.ReadDead: LeasesFeature,
    Bury: QuestionsFeature,
    control_wire.Join: ProducersFeature,
    control_wire.Leave: ProducersFeature,
    Vacate: SubscriptionsFeature,
    control_wire.Query: ExplainFeature,
    control_wire.Peek: ExplainFeature,
    control_wire.Stats: ExplainFeature,
    control_wire.Explain: ExplainFeature,
    **dict.fromkeys((control_wire.Look, control_wire.Save, control_wire.Forget), _checkpoints),
}
