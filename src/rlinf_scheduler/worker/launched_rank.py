"""One rank's process as the launching process holds it, and what Ray says of its end."""

from __future__ import annotations

import concurrent.futures
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ray.exceptions import ActorUnavailableError

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import Endpoint, Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.postmortem import Witness
from rlinf_scheduler.planning import Placement
from rlinf_scheduler.worker.processes import HostProcess

# What Ray says of processes that have gone with their node.
_NODE_ENDED = "the actor's node was terminated"
_COLOURS = re.compile("\x1b\\[[0-9;]*m")
_TELLING = ("exit detail", "exit type", "error:")
# What Ray says when a process is gone and left no word; it goes on with a list of what might have been.
_WITHOUT_A_WORD = "connection error code 2"


@dataclass(eq=False)
class LaunchedRank:
    """One rank's process.

    Attributes:
        address: the rank's name.
        placement: where it runs.
        process: its process.
        num_restarts: how many processes had its place before.
        exited: done when the process is gone; its result says why.
        gone: done when it counts as gone, with why; its process may live on somewhere.
        endpoint: how to reach it, once it runs.
        pid: its process id, once it runs.
        born: when its process began, see `birth_of`.
        progress: how far its launch has come.
        report: its word that it runs, to be answered with its assignment.
        ended_by: what ended its process by force, since it had not ended in time; "" otherwise.
        witness: who sees its process end; None where that is on another machine.
    """

    address: WorkerAddress
    placement: Placement
    process: HostProcess
    num_restarts: int = 0
    exited: concurrent.futures.Future[str] = field(default_factory=concurrent.futures.Future)
    gone: Promise[str] = field(default_factory=Promise)
    endpoint: Endpoint | None = None
    pid: int = 0
    born: int = 0
    progress: str = protocol.STARTING
    report: Request | None = None
    witness: Witness | None = None
    ended_by: str = ""

    def release_witness(self) -> None:
        """See its end no more; the I/O thread's, as making the witness is."""
        witness, self.witness = self.witness, None
        if witness is not None:
            witness.close()


def is_the_end(error: BaseException | None) -> bool:
    """Whether what Ray says means that a process is gone, and not only that Ray does not reach it now."""
    return not isinstance(error, ActorUnavailableError)


def end_of_node(error: BaseException | None) -> str:
    """Why the node of a process that is gone is gone too, if Ray says that it is; else ""."""
    if _NODE_ENDED not in str(error):
        return ""
    if "health check" in str(error):
        return "its raylet stopped answering"
    return "its raylet ended"


def most_telling(lines: Sequence[str]) -> str:
    """The one line of an explanation that says most."""
    return next((line for key in _TELLING for line in reversed(lines) if key in line.lower()), lines[-1])


def explanation_of(error: BaseException | None, witness: Witness | None) -> list[str]:
    """All that Ray says about the end of a process, without its colours and blank lines; or the witness, who knows."""
    if error is None:
        return ["its process ended"]
    if _WITHOUT_A_WORD in str(error):
        cause = "" if witness is None else witness.cause()
        return [cause or "its process is gone without a word: killed, crashed, or out of memory"]
    lines = [_COLOURS.sub("", line).rstrip() for line in str(error).splitlines()]
    return [line for line in lines if line.strip()] or [type(error).__name__]
