"""What the driver and a worker alike offer to channels: their membership in the job."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf.scheduler.cluster.session import Session
from rlinf.scheduler.comm import DirectoryClient, Messenger
from rlinf.scheduler.weights import Weights


@dataclass(frozen=True, slots=True)
class SessionRuntime:
    """A session as channels see it; how a channel's process is started differs between driver and worker."""

    session: Session

    @property
    def messenger(self) -> Messenger:
        """This process's messenger."""
        return self.session.messenger

    @property
    def directory(self) -> DirectoryClient:
        """Where names are looked up."""
        return self.session.directory

    @property
    def own_name(self) -> str:
        """How this process is called: "driver", or a worker's address."""
        return self.session.own_name

    @property
    def weights(self) -> Weights:
        """Publishes and fetches weights."""
        return self.session.weights
