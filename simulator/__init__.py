"""The library in a simulated world: the product's channel on a simulated kernel, and state machines.

Virtual time, a network that is late, cut and stalled, processes that pause, die and are followed by others, users that
leave their calls at every step: all of it decided by a seed, so that a story that fails is told again the same way.

world.py           virtual time, processes, the history
network.py         streams between processes
peer_sessions.py   the real sessions over them: nothing lost and nothing twice
host.py            a process: its sessions and the services on them
users.py           a call of a user
cluster.py         all processes, what breaks, and the parts that run there
holders.py         the processes that hold the items of nodes, with the product's `NodeHolder`
memory.py          memory that processes of one machine share
threads.py         threads of users, which run the product's blocking calls, and are interrupted anywhere
disk.py            what lies on disk, which may be lost, torn or full
kernel.py          sockets, readiness and the I/O threads of processes that run the product
machine_facts.py   what processes hear of their machine besides, and of the time
processes.py       what runs of the product in each process: a messenger on that kernel, a session, the directory
product.py         a part: the product's own channel, server and clients, in these processes
durable_channel.py  the same of a durable one, and of its successors
product_users.py   the users of its clients
watched.py         its state machine, which tells the books of every event
handle_users.py    the users of mailboxes and weights, and what they do with handles
mailbox.py         a part: the product's mailbox in every process
weights.py         a part: the product's weights: a publisher, and readers on several machines
buckets.py         memory of a device that processes share, around the real `BucketPool`, `OpenBuckets`, `HolderTable`
devices.py         a part: weights on a device, in such buckets
device_item*.py    a part: items of a channel in such buckets, around the real `ChannelState`
pinning.py         a part: memory that devices read by themselves, around `BlockStore`, `HolderTable` and `Pins`
admission.py       a part: a queue that admits, of the product
admission_oracle.py  it as it must be
makers.py          the programs that make its items, and take them
ranks.py           data-parallel ranks that train on their parts of a queue
ledger.py          what queues promise, checked at every step
bounds.py          what queues may hold
queue_oracle.py      one queue as it must be
tap_oracle.py        a subscription as it must be
shard_oracle.py      its parts as they must be
lease_oracle.py      items on lease as they must be
producer_oracle.py   the places of producers as they must be
checkpoints.py     a channel that the product saves, and restores from each file
machines.py        the machines under test
script.py          what happens in the story of a seed
run.py             tell a story
shrink.py          a short history of one that fails
__main__.py        many stories on all cores
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("greenlet") is None:
    raise ImportError(
        "users' threads in the simulator are greenlets: install the extra `dev`, or greenlet alone"
    )

from simulator.machines import Machines
from simulator.run import Report, run_script, simulate
from simulator.script import Script, draw_script
from simulator.shrink import shrink, tell

__all__ = ["Machines", "Report", "Script", "draw_script", "run_script", "shrink", "simulate", "tell"]
