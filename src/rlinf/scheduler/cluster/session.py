"""A process's place in a job: how it reaches the others, and what is undone when it leaves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlinf.scheduler.cluster.bus import EventBus
from rlinf.scheduler.comm import (
    ClusterSecret,
    DirectoryClient,
    Endpoint,
    Messenger,
    on_fork_in_child,
)
from rlinf.scheduler.errors import ClusterError
from rlinf.scheduler.planning import Topology
from rlinf.scheduler.weights import Weights

if TYPE_CHECKING:  # a worker's process needs no config reader
    from rlinf.scheduler.config.fleet import Fleet

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Session:
    """One process's membership in a job.

    Attributes:
        own_name: "driver", or a worker's `group:rank`.
        topology: the bare cluster: its nodes, without the node groups of any config.
        messenger: this process's messenger.
        directory: finds the others by name.
        directory_endpoint: where the directory is: in the driver.
        secret: what proves that a process belongs to this job.
        crosses_machines: whether some node cannot be reached through a Unix socket.
        bus: what happens in the job, for whoever listens.
        log_bus: workers' log lines, on their own: they are shown before the result of the call that wrote them, however
            slow other listeners are.
        fleet: what the nodes said about themselves; None in a worker.
        failure: what made this process leave the job; "" as long as nothing did.
    """

    own_name: str
    topology: Topology
    messenger: Messenger
    directory: DirectoryClient
    directory_endpoint: Endpoint
    secret: ClusterSecret
    crosses_machines: bool
    bus: EventBus
    log_bus: EventBus
    fleet: Fleet | None = None
    failure: str = ""
    _closers: list[Callable[[], None]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False
    _weights: Weights | None = None

    @property
    def weights(self) -> Weights:
        """Publishes and fetches weights; made on first use."""
        with self._lock:
            if self._weights is None:
                self._weights = Weights(self.messenger, self.directory)
            return self._weights

    @property
    def closed(self) -> bool:
        """Whether it has been left."""
        return self._closed

    def on_close(self, closer: Callable[[], None]) -> None:
        """Have `closer` called when the session is closed; the last one added is called first."""
        with self._lock:
            self._closers.append(closer)

    def close(self) -> None:
        """Leave the job: undo everything, last first. A second call does nothing.

        An interruption (a second Ctrl-C, say) is raised again when everything is undone.
        """
        self._closed = True
        if current_or_none() is self:
            set_current(None)
        interruption: BaseException | None = None
        while (closer := self._next_closer()) is not None:
            try:
                closer()
            except Exception:  # noqa: BLE001 - one part that cannot be undone must not keep the others up
                _log.warning("closing the cluster: a step failed", exc_info=True)
            except BaseException as error:  # noqa: BLE001 - raised below
                interruption = error
        if interruption is not None:
            raise interruption

    def fail(self) -> None:
        """Leave the job because this process's I/O thread has ended: nobody reaches it any more, nor it anybody."""
        self.failure = self.messenger.why_closed
        _log.critical("this process leaves the job, and ends what it has started: %s", self.failure)
        # Not here: what is undone may wait for what runs in this thread.
        threading.Thread(target=self.close, name="rlinf-leave-job").start()

    def abandon(self) -> None:
        """Forget everything without undoing it: in a forked child it all belongs to the parent."""
        self._lock = threading.Lock()
        self._closed = True
        self._closers.clear()

    def _next_closer(self) -> Callable[[], None] | None:
        with self._lock:
            return self._closers.pop() if self._closers else None


_current: Session | None = None


def set_current(session: Session | None) -> None:
    """Make `session` the one that this process has; None: it has none any more."""
    global _current
    _current = session
    if session is not None:
        on_fork_in_child(_forget_in_child)


def _forget_in_child() -> None:
    if _current is not None:
        _current.abandon()
        set_current(None)


def current_or_none() -> Session | None:
    """This process's session, if it has one."""
    return _current


def fail_current(_error: BaseException) -> None:
    """The I/O thread of this process's session has ended with an error."""
    if _current is not None:
        _current.fail()


def current() -> Session:
    """This process's session.

    Raises:
        ClusterError: it has none.
    """
    if _current is None:
        raise ClusterError("this process belongs to no cluster: call Cluster(...) first")
    return _current
