"""An exception whose class is read as slowly as a test wants, as if its module were large and not imported yet."""

import threading

from rlinf_scheduler.comm.reports import on_io_thread

DEADLINE_S = 60.0

# Opened by the tests that close it. And of each reading, whether an I/O thread did it.
gate = threading.Event()
gate.set()
readings = []


class SlowError(Exception):
    """What a user's program raises."""

    def __reduce__(self):
        return read_slowly, self.args


def read_slowly(*args):
    """Wait at the gate, as for an import."""
    readings.append(on_io_thread())
    assert gate.wait(DEADLINE_S)
    return SlowError(*args)
