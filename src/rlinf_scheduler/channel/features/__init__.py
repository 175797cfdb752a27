"""Everything that a channel's server does; each file is a feature, which registers itself at a server."""

from __future__ import annotations

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.clients import KnownClient
from rlinf_scheduler.channel.features.checkpoints import CheckpointsFeature
from rlinf_scheduler.channel.features.ends import EndsFeature
from rlinf_scheduler.channel.features.explain import ExplainFeature
from rlinf_scheduler.channel.features.leases import LeasesFeature, QuestionsFeature
from rlinf_scheduler.channel.features.operations import OperationsFeature
from rlinf_scheduler.channel.features.shortcuts import ShortcutsFeature
from rlinf_scheduler.channel.features.successors import ProducersFeature, SubscriptionsFeature
from rlinf_scheduler.channel.journal_records import LoadedSnapshot, ServerRecord
from rlinf_scheduler.channel.server import ChannelServer, Features
from rlinf_scheduler.queueing.leases import StartClock, StopClock
from rlinf_scheduler.queueing.messages import Bury
from rlinf_scheduler.queueing.snapshot import ripening
from rlinf_scheduler.queueing.taps import Vacate

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
    control_wire.Look: CheckpointsFeature,
    control_wire.Save: CheckpointsFeature,
    control_wire.Forget: CheckpointsFeature,
}


def record_of(server: ChannelServer) -> ServerRecord:
    """Return what a server knows besides its queues, between two turns."""
    leases, ends = server.find(LeasesFeature), server.find(EndsFeature)
    since = None if ends is None else ends.since
    return ServerRecord(
        server.feature(ProducersFeature).producers.copy(),
        {} if leases is None else leases.dues,
        None if since is None else [(*delivery, began) for delivery, began in since.items()],
        {client: (known.endpoint, known.name) for client, known in server.clients.items()},
    )


def resume(server: ChannelServer, snapshot: LoadedSnapshot) -> None:
    """Let a server that is new go on with what another one knew."""
    producers, dues, since, clients = snapshot.server
    server.state.restore(snapshot.state, snapshot.items)
    server.clients |= {client: KnownClient(client, *about) for client, about in clients.items()}
    server.feature(LeasesFeature).resume(dues)
    server.feature(ProducersFeature).resume(producers)
    server.feature(SubscriptionsFeature).resume()
    if since is not None:
        server.feature(EndsFeature).begin({(client, ticket): began for client, ticket, began in since})
    server.carry_out(ripening(server.state.queues))
