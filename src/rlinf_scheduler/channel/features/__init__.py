"""Everything that a channel's server does; each file is a feature, which registers itself at a server.

- `operations.py`: puts and gets
- `shortcuts.py`: sockets of threads that block
- `ends.py`: ends of queues and of the channel
- `leases.py`, `admission.py`, `questions.py`, `producers.py`, `subscriptions.py`
- `explain.py`, `checkpoints.py`, `recording.py`: what looks at a channel

A feature of which there are no messages is not built.
"""

from __future__ import annotations

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.clients import KnownClient
from rlinf_scheduler.channel.features.admission import Admission
from rlinf_scheduler.channel.features.checkpoints import Checkpoints
from rlinf_scheduler.channel.features.ends import Ends
from rlinf_scheduler.channel.features.explain import Explain
from rlinf_scheduler.channel.features.leases import Leases
from rlinf_scheduler.channel.features.operations import Operations
from rlinf_scheduler.channel.features.producers import ProducerPlaces
from rlinf_scheduler.channel.features.questions import Questions
from rlinf_scheduler.channel.features.recording import Recording
from rlinf_scheduler.channel.features.shortcuts import Shortcuts
from rlinf_scheduler.channel.features.subscriptions import Subscriptions
from rlinf_scheduler.channel.journal_records import LoadedSnapshot, ServerRecord
from rlinf_scheduler.channel.server import ChannelServer, Features
from rlinf_scheduler.queueing import Bury, StartClock, StopClock

FEATURES: Features = {
    wire.Put: Operations,
    wire.Puts: Operations,
    wire.Fill: Operations,
    wire.Get: Operations,
    wire.Gets: Operations,
    wire.Withdraw: Operations,
    wire.Resend: Operations,
    wire.QueryOutcome: Shortcuts,
    control_wire.Invite: Shortcuts,
    control_wire.Close: Ends,
    control_wire.EndQueue: Ends,
    control_wire.Flush: Ends,
    StartClock: Leases,
    StopClock: Leases,
    control_wire.Settle: Leases,
    control_wire.Extend: Leases,
    control_wire.DonePart: Leases,
    control_wire.ListDead: Leases,
    control_wire.ReadDead: Leases,
    control_wire.MoveDead: Leases,
    wire.Admit: Admission,
    wire.SetVersion: Admission,
    control_wire.HoldSlot: Admission,
    control_wire.LetGoOfSlot: Admission,
    Bury: Questions,
    control_wire.Retract: Questions,
    control_wire.Join: ProducerPlaces,
    control_wire.Leave: ProducerPlaces,
    control_wire.Subscribe: Subscriptions,
    control_wire.Unsubscribe: Subscriptions,
    control_wire.Query: Explain,
    control_wire.Stats: Explain,
    control_wire.Explain: Explain,
    control_wire.Look: Checkpoints,
    control_wire.Save: Checkpoints,
    control_wire.Forget: Checkpoints,
    control_wire.Record: Recording,
}


def record_of(server: ChannelServer) -> ServerRecord:
    """Return what a server knows besides its queues, between two turns."""
    leases, ends = server.find(Leases), server.find(Ends)
    since = None if ends is None else ends.since
    return ServerRecord(
        server.feature(ProducerPlaces).producers.copy(),
        {} if leases is None else leases.dues,
        None if since is None else [(*delivery, began) for delivery, began in since.items()],
        {client: (known.endpoint, known.name) for client, known in server.clients.items()},
    )


def resume(server: ChannelServer, image: LoadedSnapshot) -> None:
    """Let a server that is new go on with what another one knew."""
    producers, lease_dues, since, clients = image.server
    server.state.restore(image.state, image.items)
    server.clients |= {client: KnownClient(client, *about) for client, about in clients.items()}
    server.feature(Leases).resume(lease_dues)
    server.feature(ProducerPlaces).resume(producers)
    server.feature(Subscriptions).resume()
    if since is not None:
        server.feature(Ends).begin({(client, ticket): began for client, ticket, began in since})
    server.carry_out(server.state.ripening())
