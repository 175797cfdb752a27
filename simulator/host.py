"""A simulated process of the cluster: its sessions, and the services that use them."""

from __future__ import annotations

from typing import Any, Protocol

from simulator.machines import Machines
from simulator.network import Network
from simulator.peer_sessions import PeerSessions
from simulator.world import Process, World


class Service(Protocol):
    """What handles messages of one kind in one process."""

    def receive(self, sender: str, message: Any) -> None:
        """A message came."""

    def lost(self, peer: str) -> None:
        """The session with `peer` has ended: nothing more comes from it, nothing more arrives there."""


class Host(Process):
    """One process.

    Attributes:
        sessions: with other processes.
    """

    def __init__(self, world: World, network: Network, name: str, machines: Machines) -> None:
        super().__init__(world, name)
        self.sessions = PeerSessions(self, network, machines.session)
        self._services: dict[str, Service] = {}

    def serve(self, name: str, service: Service) -> None:
        """Give a service what others send it."""
        self._services[name] = service

    def service(self, name: str) -> Any:
        """Return a service."""
        return self._services[name]

    def send(self, peer: str, service: str, message: Any) -> None:
        """Send to a service of another process."""
        self.sessions.send(peer, (service, message))

    def receive(self, sender: str, message: tuple[str, Any]) -> None:
        """A message came; for the sessions."""
        service, content = message
        if service in self._services:
            self._services[service].receive(sender, content)

    def lost(self, peer: str) -> None:
        """A session has ended; for the sessions."""
        for service in self._services.values():
            service.lost(peer)
