"""One object, many readers: it is written once on every machine, by its publisher there, by a replica elsewhere.

Machines get it from each other in pieces, and hand on those that they have while the rest is on its way.

publication.py  who gets what: pure
records.py      the messages
pieces.py       an object on its way from machine to machine
publisher.py    the process that has the object
replicas.py     what this process keeps for the others of its machine
reading.py      the reader's side
"""

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
