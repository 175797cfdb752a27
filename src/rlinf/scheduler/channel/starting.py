"""How the process that holds a channel is started: whoever can start processes is asked for one."""

from __future__ import annotations

import msgspec

from rlinf.scheduler.channel.spec import ChannelSpec
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.errors import ChannelError, CommError
from rlinf.scheduler.session import Session

START_CHANNEL = "job.start_channel"
START_TIMEOUT_S = 120.0


class StartChannel(msgspec.Struct, frozen=True, array_like=True):
    """A channel is to be held by a process near a worker; the answer is how that process is reached.

    Attributes:
        spec: the channel.
        group: the group of the worker whose node and device the process shares; None for that of whoever asks.
        rank: that worker's rank; None for that of whoever asks, or 0 in another group.
    """

    spec: ChannelSpec
    group: str | None = None
    rank: int | None = None


class Starter:
    """Starts the processes that hold channels. This one asks the job's home for them.

    A session that can start them itself, or holds channels in its own process, provides another.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def start(self, wanted: StartChannel) -> Endpoint:
        """Start the process; how it is reached.

        Raises:
            ChannelExists: the name is taken.
            ChannelError: the worker to be beside is not there, or the process did not start.
        """
        request = self._session.messenger.request(
            self._session.home,
            START_CHANNEL,
            wanted,
            timeout_s=2 * START_TIMEOUT_S,
            reply_type=Endpoint,
        )
        try:
            endpoint: Endpoint = request.result().head
        except CommError as error:
            raise ChannelError(wanted.spec.name, f"the driver did not start it: {error}") from error
        except BaseException:
            request.cancel()  # interrupted: what is started for nobody ends again
            raise
        return endpoint
