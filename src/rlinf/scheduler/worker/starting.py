"""Launches that go on side by side: a group is there at once, and is ready when the block ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlinf.scheduler.comm.promise import Promise
from rlinf.scheduler.session import Session
from rlinf.scheduler.worker.supervision import Supervision

Launch = Callable[[], Supervision]


class Launches:
    """How this process launches groups: each before the next, or those of a `side_by_side` block together."""

    def __init__(self, session: Session) -> None:
        del session
        self._own = threading.local()

    def begin(self, launch: Launch) -> Promise[Supervision]:
        """Run a launch: now, or in a thread of its own if the calling thread is in a block; it raises, or its promise.

        Args:
            launch: brings the group's processes up; raises if it cannot, and leaves nothing behind then.
        """
        block: list[Promise[Supervision]] | None = getattr(self._own, "block", None)
        if block is None:
            return begin_now(launch)
        promise: Promise[Supervision] = Promise()
        block.append(promise)
        threading.Thread(target=_run, args=(launch, promise), name="rlinf-launch", daemon=True).start()
        return promise

    @contextmanager
    def side_by_side(self) -> Iterator[None]:
        """Launches that this thread begins in the block go on together; the block ends when all are over.

        Raises:
            LaunchError: some launch failed; the other groups of the block are ended then, as they are when the block
                raises.
        """
        outer = getattr(self._own, "block", None)
        block: list[Promise[Supervision]] = []
        self._own.block = block
        try:
            yield
            for promise in block:
                promise.wait()
                promise.result(0)
        except BaseException:
            for promise in block:
                promise.add_done_callback(_end)
            raise
        finally:
            self._own.block = outer


def begin_now(launch: Launch) -> Promise[Supervision]:
    """Run a launch; raises what it does."""
    promise: Promise[Supervision] = Promise()
    promise.set_result(launch())
    return promise


def _run(launch: Launch, promise: Promise[Supervision]) -> None:
    try:
        promise.set_result(launch())
    except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the group
        promise.set_exception(error)


def _end(promise: Promise[Supervision]) -> None:
    if promise.exception(0) is None:
        # Not here: what ends a process waits for it.
        threading.Thread(target=promise.result(0).stop, name="rlinf-stop-group", daemon=True).start()
