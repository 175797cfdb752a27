"""What a rank prints and logs, on its way to the job's home: no more than that takes, for it may be stopped."""

from __future__ import annotations

import logging
from collections import deque

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.host import protocol
from rlinf_scheduler.session import Session

# So much may be under way to a home that has not taken it.
MAX_UNTAKEN_BYTES = 4 << 20
# Of a message, beside its text.
_MESSAGE_BYTES = 500


class LineSender:
    """Sends lines of this process's rank; on the I/O thread, but for its making.

    Args:
        where: the file that has all lines; "" if there is none.
    """

    def __init__(self, session: Session, address: WorkerAddress, where: str) -> None:
        self._messenger = session.messenger
        self._home = session.home
        self._address = address
        self._where = where
        # The number and the size of each message that was not taken when that was looked at last.
        self._untaken: deque[tuple[int, int]] = deque()
        self._untaken_bytes = 0
        # Log lines that had no room.
        self._num_left_out = 0

    def has_room(self) -> bool:
        """Whether the home takes what it is sent."""
        if self._untaken_bytes < MAX_UNTAKEN_BYTES:
            return True
        num_taken = self._messenger.peers.num_taken(self._home.process_id)
        while self._untaken and self._untaken[0][0] <= num_taken:
            self._untaken_bytes -= self._untaken.popleft()[1]
        return self._untaken_bytes < MAX_UNTAKEN_BYTES

    def send_output(self, stream: str, lines: list[str]) -> None:
        """Send lines of a standard stream; the caller asks before whether there is room."""
        address = self._address
        size_bytes = sum(map(len, lines))
        self._send(
            protocol.OUTPUT, protocol.OutputLines(address.group, address.rank, lines, stream), size_bytes
        )

    def send_log_line(self, level: int, text: str) -> None:
        """Send a log line, or count it."""
        self.tell_left_out()
        if self._num_left_out or not self.has_room():
            self._num_left_out += 1
        else:
            self._log(level, text)

    def tell_left_out(self) -> None:
        """Tell how many log lines had no room, once there is."""
        if self._num_left_out and self.has_room():
            where = f"; they are in {self._where}" if self._where else ""
            number, self._num_left_out = self._num_left_out, 0
            told = f"... {number:,} log lines were left out: nobody took them in time{where}"
            self._log(logging.WARNING, told)

    def _log(self, level: int, text: str) -> None:
        rank, *below = self._address.path
        line = protocol.LogLine(self._address.group, rank, level, text, "/".join(map(str, below)))
        self._send(protocol.LOG, line, len(text))

    def _send(self, service: str, head: object, size_bytes: int) -> None:
        self._messenger.notify_first(self._home, service, head)
        size_bytes += _MESSAGE_BYTES
        self._untaken.append((self._messenger.peers.num_sent(self._home.process_id), size_bytes))
        self._untaken_bytes += size_bytes
