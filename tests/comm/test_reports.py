"""What the I/O thread logs is written, in order, and never stops it."""

import logging
import threading
import time

from rlinf.scheduler.comm.reports import WRITING_S, Reporter

DEADLINE_S = 20.0


def test_a_line_of_the_io_thread_is_written_before_what_follows_from_it(new_messenger, caplog):
    messenger = new_messenger("one:0")
    reporter, seen = Reporter("rlinf.test"), threading.Event()

    def step():
        reporter.warning("number %d", 3)
        seen.set()

    messenger.submit(step)
    assert seen.wait(DEADLINE_S)
    assert "number 3" in caplog.text


def test_the_io_thread_goes_on_while_a_user_holds_the_lock_of_a_log_handler(new_messenger):
    messenger = new_messenger("one:0")
    handler, seen = logging.StreamHandler(open("/dev/null", "w")), threading.Event()  # noqa: SIM115
    log = logging.getLogger("rlinf.test.locked")
    log.addHandler(handler)
    try:
        handler.acquire()  # as a line that a signal handler interrupted does
        try:
            messenger.submit(lambda: Reporter(log.name).warning("it waits for the lock"))
            began = time.monotonic()
            messenger.submit(seen.set)
            assert seen.wait(DEADLINE_S)
            assert time.monotonic() - began < 20 * WRITING_S
        finally:
            handler.release()
    finally:
        log.removeHandler(handler)
        handler.stream.close()


def test_an_error_is_written_with_its_traceback(new_messenger, caplog):
    messenger, seen = new_messenger("one:0"), threading.Event()

    def fails():
        seen.set()
        raise ValueError("what went wrong")

    messenger.submit(fails)
    assert seen.wait(DEADLINE_S)
    messenger.close()
    assert "what went wrong" in caplog.text
    assert "Traceback" in caplog.text
