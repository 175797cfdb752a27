"""The event bus: the thread that finds something out emits it at once; listeners hear it on a thread of their own."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # most processes tell of no event: they do not load them
    from rlinf_scheduler.events import Event, Listener

_log = logging.getLogger(__name__)


class EventBus:
    """Hands events to listeners, in order, on one thread: a listener that blocks holds up no message.

    The thread is there from the first listener on: most processes have none, and what happens there is told to nobody.
    """

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event | threading.Event | None] = queue.SimpleQueue()
        # The sizes of the events that some listener may not have heard yet.
        self._unheard: deque[int] = deque()
        # Counted by those who emit, and by the thread: nobody waits for a lock.
        self._bytes_emitted = self._bytes_heard = 0
        self._is_late = False
        self._listeners: list[Listener] = []
        self._taps: list[Listener] = []
        self._thread = threading.Thread(target=self._run, name="rlinf-events", daemon=True)

    def subscribe(self, listener: Listener) -> None:
        """Have every later event handed to `listener`; what it raises is logged and goes no further."""
        self._listeners.append(listener)
        if self._thread.ident is None:
            self._thread.start()

    def unsubscribe(self, listener: Listener) -> None:
        """Undo `subscribe`; what was emitted before may still come."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def tap(self, listener: Listener) -> None:
        """Have every later event handed to `listener` at once, by the emitting thread: it neither waits nor raises."""
        self._taps.append(listener)

    def emit(self, event: Event, size_bytes: int = 0) -> None:
        """Tell every listener; returns at once.

        Args:
            size_bytes: what it counts in `unheard_bytes`; of one thread's events only.
        """
        for tap in self._taps:
            tap(event)
        if self._listeners:
            self._unheard.append(size_bytes)
            self._bytes_emitted += size_bytes
            self._events.put(event)

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners or self._taps)

    @property
    def unheard_bytes(self) -> int:
        """The size of what some listener has not heard yet."""
        return self._bytes_emitted - self._bytes_heard

    def flush(self, timeout_s: float = 1.0) -> bool:
        """Wait until the listeners have heard everything emitted so far; False when they take longer.

        Once they have taken longer nobody waits for them again before they have caught up.
        """
        if not self._unheard:
            return True
        if self._is_late or self.tells or not self._thread.is_alive():
            return False
        heard = threading.Event()
        self._events.put(heard)
        if heard.wait(timeout_s):
            return True
        self._is_late = True
        # They may have caught up in this moment, and have said so before this.
        if not self._unheard:
            self._is_late = False
        return False

    @property
    def tells(self) -> bool:
        """Whether this is the thread that listeners are called in."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Deliver what is queued, then end the thread."""
        self._events.put(None)
        if self._thread.is_alive() and not self.tells:
            self._thread.join(timeout=2.0)

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            if isinstance(event, threading.Event):
                event.set()
            else:
                self._tell(event)
                heard_bytes = self._unheard.popleft()
                if not self._unheard:
                    self._is_late = False
                # Last: who sees that they have caught up may wait for them again.
                self._bytes_heard += heard_bytes

    def _tell(self, event: Event) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception:  # noqa: BLE001 - a listener's fault must not end the events of all others
                _log.exception("a listener failed on %r", event)
