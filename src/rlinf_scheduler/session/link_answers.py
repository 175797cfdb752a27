"""What every process does for the home's look at the network: probes a link, and says when shared memory is missing."""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

import msgspec

from rlinf_scheduler.comm import Endpoint, Request
from rlinf_scheduler.comm.link_probe import ProbeDoor, probe_link
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.errors import CommError
from rlinf_scheduler.session.session import Session

LINK = "job.link"
FELL_BACK = "job.fell_back"


class OpenProbeDoor(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A request for a door that lets one probe in; the answer is its port."""

    token: bytes


class ProbeLink(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A request to probe the way to a door; the answer is a `LinkSpeed`."""

    host: str
    port: int
    token: bytes


LinkQuestion: TypeAlias = OpenProbeDoor | ProbeLink


class FellBack(msgspec.Struct, frozen=True, array_like=True):
    """The sender does without shared memory, which costs copies; and why."""

    reason: str


def answer_probes(session: Session) -> None:
    """Let the job's home probe links from and to this process, and tell it when shared memory cannot be had."""
    messenger = session.messenger
    if session.crosses_machines:
        messenger.serve(LINK, partial(_on_question, session), LinkQuestion)
    messenger.parcels.when_without(lambda why: messenger.notify(session.home, FELL_BACK, FellBack(why)))


def _on_question(session: Session, request: Request) -> None:
    match request.head:
        case OpenProbeDoor(token):
            try:
                door = ProbeDoor(host_of(session.messenger.endpoint), token, session.messenger.ports)
            except OSError as error:
                request.fail(CommError(f"it cannot listen: {error.strerror or error}"))
                return
            run_beside_in_time(session.messenger.call_later, door.serve)
            request.reply(door.port)
        case ProbeLink() as probe:
            run_beside_in_time(session.messenger.call_later, _probe, request, probe)


def _probe(request: Request, probe: ProbeLink) -> None:
    try:
        request.reply(probe_link(probe.host, probe.port, probe.token))
    except OSError as error:
        request.fail(CommError(f"{probe.host}:{probe.port}: {error.strerror or error}"))


def host_of(endpoint: Endpoint) -> str:
    """The address at which a process listens to other machines."""
    return endpoint.tcp_address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
