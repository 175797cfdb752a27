"""What a process has written, cut into lines as they are shown, none longer than a terminal takes. Pure."""

from __future__ import annotations

from rlinf_scheduler.comm.failure import sendable

# Of a longer line the rest is left out, and counted.
MAX_LINE_BYTES = 8 << 10
# What has already travelled as a log line begins so in the file.
SENT = b"\x1e"


class LineCutter:
    r"""The lines of one stream, whose parts are given one after the other.

    Of a line that is written over again and again, such as a progress bar, the last state is shown; while it goes on,
    a state now and then.

    Args:
        where: where all of a line is that is too long.

    >>> cutter = LineCutter("run.log")
    >>> cutter.cut(b"one\ntw"), cutter.cut(b"o\n10%\r20%\nthr"), cutter.end()
    (['one'], ['two', '20%'], ['thr'])
    >>> cutter.cut(b"x" * 10_000), [line[-40:] for line in cutter.cut(b"yz\nnext\n")]
    ([], ['xxxxxxx ... 1,810 bytes more, in run.log', 'next'])
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self.restart()

    def restart(self) -> None:
        """Forget the line that has not ended."""
        # Its first bytes, and how many followed them; and how much was written over since a state of it was shown.
        self._rest = b""
        self._num_left_out = self._num_over = 0

    def cut(self, part: bytes) -> list[str]:
        """The lines that end in the next part."""
        *ended, rest = (self._rest + part).split(b"\n")
        shown = []
        for line in ended:
            shown += self._shown(line)
        if ended:
            self._num_over = 0
        return shown + self._keep(rest)

    def end(self) -> list[str]:
        """The line that has not ended, as if it had; none if there is nothing of it."""
        shown = self._shown(self._rest) if self._rest else []
        self.restart()
        return shown

    def _keep(self, rest: bytes) -> list[str]:
        """Keep the line that has not ended; what it shows, if it was written over for long."""
        shown = []
        # A return at its very end may be a part of how it ends.
        over = rest.rstrip(b"\r").rfind(b"\r") + 1
        if over:
            self._num_left_out = 0
            self._num_over += over
            if self._num_over > MAX_LINE_BYTES:
                self._num_over = 0
                shown = self._shown(rest[: over - 1])
            rest = rest[over:]
        line = rest.rstrip(b"\r")
        self._num_left_out += max(0, len(line) - MAX_LINE_BYTES)
        self._rest = line[:MAX_LINE_BYTES] + (b"\r" if len(line) < len(rest) else b"")
        return shown

    def _shown(self, line: bytes) -> list[str]:
        num_left_out, self._num_left_out = self._num_left_out, 0
        line = line.rstrip(b"\r")
        state = line.rpartition(b"\r")[2]
        if state.startswith(SENT):
            return []
        if len(state) < len(line):  # what was left out is written over, too
            num_left_out = 0
        num_left_out += max(0, len(state) - MAX_LINE_BYTES)
        text = sendable(state[:MAX_LINE_BYTES].decode(errors="replace"))
        return [f"{text} ... {num_left_out:,} bytes more, in {self._where}" if num_left_out else text]
