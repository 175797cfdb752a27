"""Every error this library raises, as one tree.

An error carries its fields as arguments and builds its text in `__str__`, so that it crosses process
boundaries through pickle unchanged.

    SchedulerError
    ├── ConfigError (ValueError)            a mistake in the file or the arguments
    │   ├── PlacementError (AssertionError) a mistake in a placement; the documents promise AssertionError
    │   ├── UnknownKey                      a key that means nothing where it stands
    │   └── ConfigErrors                    several independent mistakes, reported together
    │       └── PlacementErrors (PlacementError) several, at least one of them in a placement
    ├── ClusterError                        the cluster cannot be started, joined or used
    │   ├── ClusterTimeout (TimeoutError)
    │   ├── NodeLost                        a node that something is to start on is gone
    │   ├── HardwareUnreachable             a robot does not answer
    │   └── DeviceMismatch                  a rank sees other accelerators than it was placed on
    ├── LaunchError                         a worker group did not come up
    │   ├── GroupExists
    │   ├── DeviceHeld                      somebody else has devices that it is placed on
    │   ├── ResizeError                     it does not grow, or shrink
    │   └── LaunchTimeout (TimeoutError)
    ├── WorkerError                         a worker's method raised
    │   └── WorkerDied                      a worker's process is gone
    ├── CallArgumentError (TypeError)       a call or a constructor whose arguments do not fit
    ├── CallCancelled                       a call was given up by its caller
    ├── UnevenStreams                       the ranks of a streaming call gave different numbers of values
    ├── WaitTimeout (TimeoutError)          a wait passed its deadline; as far as that is known, why
    │   └── ResultTimeout                   it was for a result
    ├── DeviceLockTimeout (TimeoutError)    other workers had the devices until the deadline
    ├── FileError                           what is kept in a file cannot be used
    │   ├── CheckpointError                 a checkpoint cannot be written, read, or restored from
    ├── CommError                           bytes did not get through
    │   ├── PeerDied                        the other side is gone
    │   ├── PeerNotFound (TimeoutError)     nobody registered under that name in time
    │   ├── NameTaken                       a name of the directory is in use
    │   ├── CommTimeout (WaitTimeout)
    │   ├── RouteError (ValueError)         a batch does not fit the route between two groups
    │   ├── NotServed                       the other side has no such service (any more)
    │   ├── SharedMemoryUnreadable          an object lies in shared memory that the receiver cannot open
    │   ├── WeightsError                    weights cannot be published or fetched
    │   │   ├── WeightsReplaced             their group was launched anew since they were fetched
    │   │   └── WeightsMismatch             they do not fit where they should go
    │   └── CodecError                      an object cannot be sent
    │       └── BatchUndecodable            some items of a batch cannot be read; it has the others
    ├── EngineError                         an engine of rollouts cannot do what it was asked
    │   ├── EngineDead                      it, or one of its processes, is gone
    │   └── UpdateFailed                    the version before is in use
    ├── FaceError (ImportError)             an RLinf checkout's own scheduler cannot be replaced by this library
    └── ChannelError
        ├── ChannelNotFound (LookupError)
        ├── ChannelExists
        ├── ChannelTimeout (WaitTimeout)
        │   ├── BatchTimeout                a batch was not there; what was wanted, and what there is
        │   └── ChannelUnanswered           its server did not answer; what became of it is not known
        ├── ChannelClosed
        │   └── RankLeaving                 this process takes no more work: its rank leaves the group
        ├── ChannelLost                     it was deleted, or the process that held it is gone
        ├── ChannelArgumentError (ValueError)
        ├── ChannelEmpty (queue.Empty, asyncio.QueueEmpty)
        ├── ChannelFull (queue.Full, asyncio.QueueFull)
        ├── ChannelUnanswerable             a question has become a dead letter
        ├── QueueError                      of one of its queues
        │   ├── ItemsLost                   the node that held the bytes of items is gone
        │   ├── LeaseExpired                items are settled that are on lease no more: another one has them
        │   ├── SlotExpired                 an item was put with this slot before, or it was given back
        │   └── VersionTooEarly             with this version, items would be older than they may be
        ├── ChannelJournalError             the files of a durable channel cannot be used
        └── BatchImpossible                 a batch that no future put can complete
"""

from typing import TYPE_CHECKING

# All that these define is public.
from rlinf_scheduler.errors.base import *  # noqa: F403
from rlinf_scheduler.errors.calls import *  # noqa: F403
from rlinf_scheduler.errors.channel import *  # noqa: F403
from rlinf_scheduler.errors.cluster import *  # noqa: F403
from rlinf_scheduler.errors.comm import *  # noqa: F403
from rlinf_scheduler.errors.config import *  # noqa: F403
from rlinf_scheduler.errors.engines import *  # noqa: F403
from rlinf_scheduler.errors.stored import *  # noqa: F403
from rlinf_scheduler.lazy import loader as _loader

if TYPE_CHECKING:  # loaded with the first channel
    from rlinf_scheduler.errors.queues import ChannelEmpty as ChannelEmpty
    from rlinf_scheduler.errors.queues import ChannelFull as ChannelFull
else:
    __getattr__ = _loader(
        globals(), dict.fromkeys(("ChannelEmpty", "ChannelFull"), "rlinf_scheduler.errors.queues")
    )
