"""Which weights a job has, as the index at its home knows, and who reads them from whom, as its readers say."""

from __future__ import annotations

import msgspec

from rlinf_scheduler.comm.replication import CarriedBy
from rlinf_scheduler.session import Session, current_session
from rlinf_scheduler.weights.index_service import JOB_READ, open_index
from rlinf_scheduler.weights.records import LIST, ReadVersion, WeightsUse
from rlinf_scheduler.wording import counted, did_you_mean, list_names, size_text, text_table

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
        reasons: dict[CarriedBy, dict[str, None]] = {}
        for process, read in sorted(self.readers.items()):
            for (source, size, way), carrier in zip(read.flows, read.carriers, strict=True):
                rows.append((process, str(read.version), size_text(size), source, f"{way}, {carrier.by}"))
                if carrier.why:
                    reasons.setdefault(carrier, {})[process] = None
        because = [f"by {by} to {list_names(those)}: {why}" for (by, why), those in reasons.items()]
        lines = [*text_table(rows, right=(1, 2)), *because] if self.readers else ["nobody has fetched them"]
        return "\n".join(lines)


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

    @property
    def copies(self) -> dict[str, dict[str, int]]:
        """How versions came to machines that had the one before, by publisher: as "delta", or whole, and then why."""
        return self._use().copies

    def plan(self) -> WeightsPlan:
        """Return who reads how much from whom and by which way, of all that have fetched them; to be printed."""
        return WeightsPlan(self.name, self._use().readers)

    def _use(self) -> WeightsUse:
        session = current_session()
        asked = JOB_READ.ask(session.messenger, session.home, self.name, timeout_s=ANSWER_TIMEOUT_S)
        used: WeightsUse = JOB_READ.answer_of_home(asked)
        return used

    def __str__(self) -> str:
        size = f"{size_text(sum(self.sources.values()))} of {counted(len(self.sources), 'process', 'es')}"
        version = "no complete version" if self.version is None else f"version {self.version}, {size}"
        return "; ".join([f"'{self.name}': {version}", *self.incomplete.values()])


class AllWeights(dict[str, PublishedWeights]):
    """The weights of a job, by name; an error about a name that is not there says which one is like it."""

    def __missing__(self, name: str) -> PublishedWeights:
        raise KeyError(self.unknown(name))

    def unknown(self, name: str) -> str:
        """Say that nothing of a name is published, and what is."""
        known = f"'{name}' is not among the weights of this job: {list_names(self) or 'there are none'}"
        hint = did_you_mean(name, self)
        return f"{known}; {hint}" if hint else known


def published_weights(session: Session) -> AllWeights:
    """The weights that living processes publish, by name."""
    if session.home == session.messenger.endpoint:
        session.service(open_index)
    answer = session.messenger.request(
        session.home, LIST, None, timeout_s=ANSWER_TIMEOUT_S, reply_type=list[PublishedWeights]
    )
    return AllWeights({each.name: each for each in answer.result().head})
