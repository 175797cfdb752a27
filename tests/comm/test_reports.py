"""What the I/O thread logs is written, in order, and never stops it."""

import _thread
import logging
import threading

from rlinf_scheduler.comm import reports
from rlinf_scheduler.comm.reports import Reporter

DEADLINE_S = 60.0


def test_a_line_of_the_io_thread_is_written_before_what_follows_from_it(new_messenger, caplog):
    messenger = new_messenger("one:0")
    reporter, seen = Reporter("rlinf.test"), threading.Event()

    def step():
        reporter.warning("number %d", 3)
        seen.set()

    messenger.submit(step)
    assert seen.wait(DEADLINE_S)
    assert "number 3" in caplog.text


class Noting(logging.Handler):
    """Says when it has written a line."""

    def __init__(self):
        super().__init__()
        self.written = threading.Event()

    def emit(self, _record):
        self.written.set()


def test_the_io_thread_goes_on_while_a_user_holds_the_lock_of_a_log_handler(new_messenger):
    messenger = new_messenger("one:0")
    handler, seen = Noting(), threading.Event()
    log = logging.getLogger("rlinf.test.locked")
    log.addHandler(handler)
    try:
        handler.acquire()  # as a line that a signal handler interrupted does
        try:
            messenger.submit(lambda: Reporter(log.name).warning("it waits for the lock"))
            messenger.submit(seen.set)
            assert seen.wait(DEADLINE_S)
            assert not handler.written.is_set()
        finally:
            handler.release()
        assert handler.written.wait(DEADLINE_S)
    finally:
        log.removeHandler(handler)


class Failing(logging.Handler):
    """Has a mistake in it."""

    def emit(self, record):
        raise LookupError(record.getMessage())


def test_a_log_handler_that_raises_costs_its_line_and_no_other(new_messenger, caplog):
    messenger, seen = new_messenger("one:0"), threading.Event()
    handler = Failing()
    log = logging.getLogger("rlinf.test.failing")
    log.addHandler(handler)
    try:
        messenger.submit(lambda: Reporter(log.name).warning("not written"))
        messenger.submit(lambda: Reporter("rlinf.test").warning("written all the same"))
        messenger.submit(seen.set)
        assert seen.wait(DEADLINE_S)
    finally:
        log.removeHandler(handler)
    assert "written all the same" in caplog.text
    assert "a log handler failed: LookupError('not written')" in caplog.text


def test_a_line_that_no_thread_can_be_had_for_is_lost_and_the_io_thread_goes_on(new_messenger, monkeypatch):
    messenger, seen = new_messenger("one:0"), threading.Event()

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(reports._writer, "_is_running", False)
    monkeypatch.setattr(_thread, "start_new_thread", refuse)

    def fails():
        raise ValueError("which is logged")

    messenger.submit(fails)
    messenger.submit(seen.set)
    assert seen.wait(DEADLINE_S)
    assert not messenger.why_closed


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


def test_the_logger_is_there_before_the_first_line_which_may_come_on_any_thread():
    name = "a module that has nothing to say yet"
    Reporter(name)
    assert name in logging.root.manager.loggerDict
