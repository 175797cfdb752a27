"""Waits for what the job's home answers."""

from __future__ import annotations

from rlinf_scheduler.comm import Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.waits import IDLE, Wait, awaited
from rlinf_scheduler.errors import ClusterError, CommTimeout


@awaited(lambda local: Wait(IDLE, local["what"]))
def reply_of_home(asked: Promise[Reply], what: str) -> Reply:
    """What the home answers.

    Args:
        asked: the question.
        what: it asks for, in words.

    Raises:
        ClusterError: the home does not answer.
        CommError: it is gone.
    """
    try:
        return asked.result()
    except CommTimeout as error:
        raise ClusterError(f"the job's driver does not answer: {error}") from error
