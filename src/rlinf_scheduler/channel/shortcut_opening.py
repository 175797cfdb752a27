"""How threads of this process get shortcuts to the server of one channel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from weakref import WeakSet

from rlinf_scheduler.channel.shortcut import Shortcut, ShortcutRequest, dial
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Reply
from rlinf_scheduler.comm.promise import Promise


class ShortcutOpening:
    """Opens shortcuts. On the I/O thread only.

    Args:
        messenger: this process's.
        invite: asks the server where it takes one.
    """

    def __init__(self, messenger: Messenger, invite: Callable[[], Promise[Reply]]) -> None:
        self._messenger = messenger
        self._invite = invite
        self._is_over = False
        self._open: WeakSet[Shortcut] = WeakSet()

    def begin(self, request: ShortcutRequest) -> None:
        """Get a shortcut for a thread, unless what arrives here is held back: nothing would be on its way past that."""
        if self._messenger.arrivals is not None:
            return
        self._invite().add_done_callback(partial(self._on_invited, request))

    def end(self) -> None:
        """The server is gone: break all of them, and open no more."""
        self._is_over = True
        for shortcut in list(self._open):
            shortcut.end()

    def _on_invited(self, request: ShortcutRequest, reply: Promise[Reply]) -> None:
        if self._is_over or reply.exception() is not None or not reply.result().head.path:
            return
        shortcut = dial(reply.result().head)
        if shortcut is not None:
            self._open.add(shortcut)
            # It hears the server's first word, or its end, soon.
            self._messenger.watch(shortcut.fileno(), partial(self._on_welcome, shortcut, request))

    def _on_welcome(self, shortcut: Shortcut, request: ShortcutRequest) -> None:
        self._messenger.unwatch(shortcut.fileno())
        if shortcut.is_welcome():
            request.shortcut = shortcut
