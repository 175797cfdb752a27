"""Which weights a job has: the directory knows who publishes, and the publishers say which version."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.errors import CommError
from rlinf_scheduler.session import Session
from rlinf_scheduler.weights.fetch import entry_of
from rlinf_scheduler.weights.records import NO_VERSION, VERSIONS

ANSWER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    """Weights that a process publishes.

    Attributes:
        name: what they are called.
        version: the newest version; None where there is none yet, or its publisher did not answer.
    """

    name: str
    version: int | None


def published_weights(session: Session) -> dict[str, PublishedWeights]:
    """The weights that living processes publish, by name; each process is asked once, all at the same time."""
    prefix = entry_of("")
    names: dict[Endpoint, list[str]] = {}
    for entry in session.directory.list(prefix):
        names.setdefault(entry.endpoint, []).append(entry.name.removeprefix(prefix))
    asked = {
        endpoint: session.messenger.request(
            endpoint, VERSIONS, None, timeout_s=ANSWER_TIMEOUT_S, reply_type=dict[str, int]
        )
        for endpoint in names
    }
    found: dict[str, PublishedWeights] = {}
    for endpoint, answer in asked.items():
        try:
            versions: dict[str, int] = answer.result().head
        except CommError:  # it is gone, or does not answer: that it publishes is all there is to say
            versions = {}
        for name in names[endpoint]:
            version = versions.get(name, NO_VERSION)
            found[name] = PublishedWeights(name, None if version == NO_VERSION else version)
    return dict(sorted(found.items()))
