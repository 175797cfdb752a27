"""Where the hosts of a launching process report."""

from __future__ import annotations

from typing import Protocol

from rlinf.scheduler.comm import Request
from rlinf.scheduler.errors import LaunchError
from rlinf.scheduler.host import protocol
from rlinf.scheduler.session import Session


class Reports(Protocol):
    """A launch that hosts report to; called on the messenger's thread."""

    id: str

    def on_hello(self, request: Request) -> None:
        """A rank's process runs; the answer makes it the rank that it is."""

    def on_progress(self, request: Request) -> None:
        """A rank has come further, is ready, or has failed."""


class LaunchDesk:
    """One a launching process, for all its launches; a service of its session."""

    def __init__(self, session: Session) -> None:
        self._launches: dict[str, Reports] = {}
        session.messenger.serve(protocol.HELLO, self._on_hello, protocol.Hello)
        session.messenger.serve(protocol.PROGRESS, self._on_progress, protocol.Progress)

    def open(self, launch: Reports) -> None:
        """Pass reports of this launch on to it."""
        self._launches[launch.id] = launch

    def close(self, launch: Reports) -> None:
        """Answer later reports of this launch with its end."""
        self._launches.pop(launch.id, None)

    def _on_hello(self, request: Request) -> None:
        self._launch_of(request.head.launch_id).on_hello(request)

    def _on_progress(self, request: Request) -> None:
        self._launch_of(request.head.launch_id).on_progress(request)
        request.reply(None)

    def _launch_of(self, launch_id: str) -> Reports:
        launch = self._launches.get(launch_id)
        if launch is None:
            raise LaunchError("", "this launch is over: it failed or passed its deadline")
        return launch
