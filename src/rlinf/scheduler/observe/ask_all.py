"""Asks many processes the same, and waits for none for longer than for the others. On the I/O thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from rlinf.scheduler.comm import Endpoint, Messenger, Reply
from rlinf.scheduler.comm.promise import Promise


class ReplyFrom(NamedTuple):
    """What a process has answered.

    Attributes:
        name: its name.
        endpoint: how it is reached.
        reply: the answer.
        asked_at: when it was asked, on this process's monotonic clock,
        answered_at: and when the answer came.
    """

    name: str
    endpoint: Endpoint
    reply: Reply
    asked_at: float
    answered_at: float


class AllAsked:
    """One question to many processes.

    Args:
        messenger: this process's.
        asked: their names and endpoints, by process id.
        done: called once, with the answers, and why each of the others has not answered, by name.
    """

    def __init__(
        self,
        messenger: Messenger,
        asked: Mapping[str, tuple[str, Endpoint]],
        done: Callable[[list[ReplyFrom], dict[str, str]], None],
    ) -> None:
        self._messenger = messenger
        self._missing = dict(asked)
        self._done = done
        self._answers: list[ReplyFrom] = []
        self._problems: dict[str, str] = {}

    def ask(self, service: str, head: Any, within_s: float, reply_type: Any) -> None:
        """Ask; who has not answered within so many seconds is told of as missing."""
        if not self._missing:
            self._done([], {})
        for process_id, (_, endpoint) in list(self._missing.items()):
            asked = self._messenger.request(
                endpoint, service, head, timeout_s=within_s, reply_type=reply_type
            )
            asked.add_done_callback(partial(self._on_answer, process_id, time.monotonic()))

    def _on_answer(self, process_id: str, asked_at: float, answer: Promise[Reply]) -> None:
        name, endpoint = self._missing.pop(process_id)
        error = answer.exception(0)
        if error is None:
            self._answers.append(ReplyFrom(name, endpoint, answer.result(0), asked_at, time.monotonic()))
        else:
            self._problems[name] = str(error)
        if not self._missing:
            self._done(self._answers, self._problems)
