"""A job that outlives its drivers, without Ray: a `ForkedJob` keeps it, its drivers are sessions of this process."""

import contextlib

from forked_job import ForkedJob, View
from rlinf_scheduler.config.fleet import Fleet, FleetAccelerator, FleetNode
from rlinf_scheduler.host.info import DetachedJob
from rlinf_scheduler.session import Session
from rlinf_scheduler.worker.home_server import DriverServer
from rlinf_scheduler.worker.remote_home import AttachedDriver


class DetachedForkedJob(ForkedJob):
    """The job server."""

    def __init__(self):
        super().__init__()
        self._drivers = contextlib.ExitStack()
        self.session.provide(DetachedJob, DetachedJob("forked"))
        devices = tuple(FleetAccelerator("simulated", str(index)) for index in range(4))
        nodes = [
            FleetNode(node_id=node.node_id, ip=node.ip, accelerators=devices) for node in self.topology.nodes
        ]
        self.session.provide(Fleet, Fleet(tuple(nodes)))
        self.session.service(self.desk_of)

    def desk_of(self, session):
        return DriverServer(session, refresh=lambda session, timeout_s: None)

    def attach(self, name="driver@here.1"):
        """A driver: what a launch needs of a `Cluster`."""
        session = Session(self.session.secret, name, home=self.session.home)
        self._drivers.callback(session.close)
        session.provide(AttachedDriver, AttachedDriver(session, "forked"))
        return View(session, self.topology)

    def close(self):
        self._drivers.close()
        super().close()
