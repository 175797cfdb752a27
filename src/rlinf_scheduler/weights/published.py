"""Which weights a job has, as the index at its home knows, and who reads them from whom, as its readers say."""

from __future__ import annotations

import msgspec

from rlinf_scheduler.session import Session, current_session
from rlinf_scheduler.weights.index_service import JOB_READ, open_index
from rlinf_scheduler.weights.records import LIST, ReadVersion
from rlinf_scheduler.wording import counted, size_text, text_table

ANSWER_TIMEOUT_S = 5.0


class WeightsPlan(msgspec.Struct, frozen=True):
    """Who reads how much of weights from whom, and by which way; as text, a table.

    Attributes:
        name: of the weights.
        readers: what each process that has fetched them has read last.
    """

    name: str
    readers: dict[str, ReadVersion]

    def __str__(self) -> str:
        rows = [("reader", "version", "reads", "from", "by way of")]
        for process, read in sorted(self.readers.items()):
            about = process, str(read.version)
            rows += [(*about, size_text(size), source, way) for source, size, way in read.flows]
        return "\n".join(text_table(rows, right=(1, 2)) if self.readers else ["nobody has fetched them"])


class PublishedWeights(msgspec.Struct, frozen=True, array_like=True):
    """Weights that processes publish.

    Attributes:
        name: what they are called.
        version: the newest complete version; None where there is none yet.
        sources: which processes have it, and how many bytes of it.
        incomplete: versions after it, and what they lack.
    """

    name: str
    version: int | None
    sources: dict[str, int] = {}
    incomplete: dict[int, str] = {}

    @property
    def readers(self) -> dict[str, int]:
        """The version that each living process has fetched last."""
        return {process: read.version for process, read in self.plan().readers.items()}

    def plan(self) -> WeightsPlan:
        """Return who reads how much from whom and by which way, of all that have fetched them; to be printed."""
        session = current_session()
        asked = JOB_READ.ask(session.messenger, session.home, self.name, timeout_s=ANSWER_TIMEOUT_S)
        return WeightsPlan(self.name, JOB_READ.answer_of_home(asked))

    def __str__(self) -> str:
        size = f"{size_text(sum(self.sources.values()))} of {counted(len(self.sources), 'process', 'es')}"
        version = "no complete version" if self.version is None else f"version {self.version}, {size}"
        return "; ".join([f"'{self.name}': {version}", *self.incomplete.values()])


def published_weights(session: Session) -> dict[str, PublishedWeights]:
    """The weights that living processes publish, by name."""
    if session.home == session.messenger.endpoint:
        session.service(open_index)
    answer = session.messenger.request(
        session.home, LIST, None, timeout_s=ANSWER_TIMEOUT_S, reply_type=list[PublishedWeights]
    )
    return {each.name: each for each in answer.result().head}
