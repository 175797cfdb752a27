"""Which weights a job has, as the index at its home knows."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlinf_scheduler.session import Session
from rlinf_scheduler.weights.index import PublishedState
from rlinf_scheduler.weights.index_service import open_index
from rlinf_scheduler.weights.records import LIST, NO_VERSION

ANSWER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    """Weights that processes publish.

    Attributes:
        name: what they are called.
        version: the newest complete version; None where there is none yet.
        sources: which processes have it, and how many bytes of it.
        incomplete: versions after it, and what they lack.
    """

    name: str
    version: int | None
    sources: dict[str, int] = field(default_factory=dict)
    incomplete: dict[int, str] = field(default_factory=dict)


def published_weights(session: Session) -> dict[str, PublishedWeights]:
    """The weights that living processes publish, by name."""
    if session.home == session.messenger.endpoint:
        session.service(open_index)
    answer = session.messenger.request(
        session.home, LIST, None, timeout_s=ANSWER_TIMEOUT_S, reply_type=list[PublishedState]
    )
    states: list[PublishedState] = answer.result().head
    return {
        each.name: PublishedWeights(
            each.name, None if each.version == NO_VERSION else each.version, each.sources, each.lacks
        )
        for each in states
    }
