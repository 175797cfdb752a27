"""One object, many readers: it is written once on every machine, by its publisher there, by a replica elsewhere."""

from rlinf_scheduler.comm.replication.publisher import Publisher
from rlinf_scheduler.comm.replication.reading import Reading
from rlinf_scheduler.comm.replication.records import (
    NOTHING_HEARD,
    AnswerKind,
    CarriedBy,
    Key,
    ReaderAnswer,
    Want,
)
from rlinf_scheduler.comm.replication.replicas import Replicas

__all__ = [
    "NOTHING_HEARD",
    "AnswerKind",
    "CarriedBy",
    "Key",
    "Publisher",
    "ReaderAnswer",
    "Reading",
    "Replicas",
    "Want",
]
