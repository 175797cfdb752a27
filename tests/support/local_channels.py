"""Processes that hold channels, without Ray: sessions of this process, found and ended by a real `ChannelStarter`."""

import threading
from dataclasses import dataclass

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.channel_worker import Channels
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.membership import GroupMembers
from rlinf_scheduler.worker.channel_starter import ChannelStarter
from rlinf_scheduler.worker.order import LaunchOptions
from rlinf_scheduler.worker.processes import LaunchedRank
from rlinf_scheduler.worker.supervision import Supervision

DEADLINE_S = 60.0


@dataclass(eq=False)
class LocalRank(LaunchedRank):
    """A 'process' that is a session of this one."""

    session: Session | None = None

    def kill(self, reason="killed"):
        """End it as a signal would, as far as others see."""
        self.session.close()
        if not self.exited.done():
            self.exited.set_result(reason)


class LocalStarter(ChannelStarter):
    """Starts sessions instead of processes.

    Attributes:
        ranks: what was started.
        may_start: cleared, starts wait until it is set.
        problem: what the next starts fail with.
    """

    def __init__(self, session, **options):
        super().__init__(session, **options)
        self.ranks = []
        self.placements = []
        self.may_start = threading.Event()
        self.may_start.set()
        self.problem = None

    def launch(self, placement):
        self.placements.append(placement)
        assert self.may_start.wait(DEADLINE_S)
        if self.problem is not None:
            raise self.problem
        address = WorkerAddress("Channels", len(self.ranks))
        session = Session(self._session.secret, str(address), home=self._session.home)
        rank = LocalRank(WorkerAddress("Channels", 0), placement, None, session=session)
        rank.process = rank
        rank.endpoint = session.messenger.endpoint
        # Not on its I/O thread, which it waits for.
        end = threading.Thread(target=rank.kill, args=("it was asked to end",), daemon=True)
        session.messenger.serve(protocol.STOP, lambda _: end.start(), None)
        self.host(session)
        self.ranks.append(rank)
        return Supervision(
            self._session, GroupMembers(str(address), (0,)), [rank], LaunchOptions(on_failure="end")
        )

    def host(self, session):
        Channels(session)

    def living(self):
        return [rank for rank in self.ranks if not rank.exited.done()]
