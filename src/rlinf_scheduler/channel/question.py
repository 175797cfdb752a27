"""What travels when a process asks: the question through a channel, its answer straight to who asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.errors import ChannelArgumentError

# The service of whoever asks.
ANSWER = "channel.answer"


@dataclass(frozen=True, slots=True)
class Question:
    """An item that somebody waits for the answer of; it lies in a queue as any other.

    Attributes:
        number: which question of its process it is.
        asker: that process.
        asked_by: its name.
        item: what is asked.
    """

    number: int
    asker: Endpoint
    asked_by: str
    item: Any


def refuse_questions(channel: str, items: Iterable[Any]) -> None:
    """Raise if one of these items is a question: taken as any other item, it would never be answered.

    Raises:
        ChannelArgumentError: for it.
    """
    for item in items:
        if type(item) is Question:
            problem = (
                f"the next item of this queue was asked by '{item.asked_by}', which waits for the answer: take it by "
                "`next_request`; it stays where it is"
            )
            raise ChannelArgumentError(channel, problem)


class Answered(msgspec.Struct, tag=0, array_like=True, frozen=True):
    """The answer to a question, in the frames -> `Received`."""

    number: int


class Failed(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Why there is no answer, as `dump_failure` wrote it -> `Received`."""

    number: int


class Unanswerable(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """A notice of the channel: the question was given out as often as it may be, and never answered."""

    number: int
    attempts: int
    consumer: str
    reason: str


Answer: TypeAlias = Answered | Failed | Unanswerable


class Received(msgspec.Struct, array_like=True, frozen=True):
    """The asker's receipt of an answer; `unreadable`: why it cannot be read where it lies, and is to come as bytes."""

    unreadable: str = ""
