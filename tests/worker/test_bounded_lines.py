"""Lines of ranks that nobody reads: bounded, counted, told of; who waits for answers is not held up."""

import threading
from types import SimpleNamespace

import pytest

from rlinf_scheduler.events import WorkerLogged, WorkerPrinted
from rlinf_scheduler.host import log_lines
from rlinf_scheduler.host.log_lines import BoundedLines
from rlinf_scheduler.session import EventBus
from rlinf_scheduler.session import bus as bus_module
from waits import DEADLINE_S, wait_until


class Terminal:
    """A listener that can be stopped, and what it has shown."""

    def __init__(self):
        self.goes_on = threading.Event()
        self.shown = []

    def show(self, event):
        self.goes_on.wait(DEADLINE_S)
        self.shown += event.lines if isinstance(event, WorkerPrinted) else [event.message]


@pytest.fixture
def bounded(monkeypatch):
    monkeypatch.setattr(log_lines, "MAX_UNHEARD_BYTES", 10_000)
    bus, terminal, looks = EventBus(), Terminal(), []
    bus.subscribe(terminal.show)
    lines = BoundedLines(bus, lambda _, look: looks.append(look), lambda group, rank: f"/logs/{group}-{rank}")
    yield lines, bus, terminal, looks
    terminal.goes_on.set()
    bus.close()


def printed(rank, number):
    return WorkerPrinted("g", rank, (f"line {number}",))


def test_what_nobody_reads_is_bounded_and_counted_and_told_of_when_somebody_does(bounded):
    lines, bus, terminal, looks = bounded
    for number in range(1000):
        lines.emit(printed(number % 2, number))
    assert bus.unheard_bytes < 10_200
    assert len(looks) == 1
    looks.pop()()  # nobody reads yet
    terminal.goes_on.set()
    assert bus.flush(DEADLINE_S)
    looks.pop()()
    assert bus.flush(DEADLINE_S)
    assert looks == []
    *whole, first, second = terminal.shown
    assert whole == [f"line {number}" for number in range(len(whole))]
    left_out = (1000 - len(whole)) // 2
    assert first == f"... {left_out} lines were left out: nobody read them in time; they are in /logs/g-0"
    assert second.endswith("/logs/g-1")


def test_what_was_left_out_is_told_of_before_what_comes_after_it(bounded):
    lines, bus, terminal, _ = bounded
    for number in range(200):
        lines.emit(WorkerLogged("g", 0, 20, f"line {number}"))
    terminal.goes_on.set()
    bus.flush(DEADLINE_S)
    lines.emit(printed(0, "after"))
    bus.flush(DEADLINE_S)
    assert "left out" in terminal.shown[-2]
    assert terminal.shown[-1] == "line after"


def test_a_stopped_terminal_holds_up_one_answer_and_no_other_until_it_has_caught_up(bounded):
    lines, bus, terminal, _ = bounded
    lines.emit(printed(0, 0))
    assert not bus.flush(0.05)
    # Who waited would do so until the terminal goes on by itself.
    assert not any(bus.flush(2 * DEADLINE_S) for _ in range(100))
    terminal.goes_on.set()
    wait_until(lambda: bus.unheard_bytes == 0)
    terminal.goes_on.clear()
    lines.emit(printed(0, 1))
    threading.Timer(0.1, terminal.goes_on.set).start()
    assert bus.flush(DEADLINE_S)


class Looked(EventBus):
    """Whether it said that listeners are late as it counted last what they have heard."""

    num_heard, was_late, _is_late = 0, None, False

    @property
    def _bytes_heard(self):
        return self.num_heard

    @_bytes_heard.setter
    def _bytes_heard(self, number):
        self.num_heard, self.was_late = number, self._is_late


def test_who_sees_that_all_is_heard_may_wait_for_the_next_at_once():
    bus, terminal = Looked(), Terminal()
    bus.subscribe(terminal.show)
    bus.emit(printed(0, 0), 1)
    assert not bus.flush(0.05)
    terminal.goes_on.set()
    wait_until(lambda: bus.unheard_bytes == 0)
    assert bus.was_late is False
    bus.close()


def test_who_gives_up_as_all_is_heard_keeps_nobody_from_waiting_for_the_next(monkeypatch):
    bus, terminal = EventBus(), Terminal()
    bus.subscribe(terminal.show)

    class Waited(threading.Event):
        gives_up = True

        def wait(self, timeout=None):
            terminal.goes_on.set()
            return super().wait(timeout) and not self.gives_up

    monkeypatch.setattr(bus_module, "threading", SimpleNamespace(**{**vars(threading), "Event": Waited}))
    bus.emit(printed(0, 0))
    assert not bus.flush(DEADLINE_S)
    Waited.gives_up = False
    terminal.goes_on.clear()
    bus.emit(printed(0, 1))
    assert bus.flush(DEADLINE_S)
    bus.close()


def test_lines_that_are_read_in_time_are_all_there(bounded):
    lines, bus, terminal, looks = bounded
    terminal.goes_on.set()
    for number in range(1000):
        lines.emit(printed(0, number))
        if number % 50 == 0:
            assert bus.flush(DEADLINE_S)
    bus.flush(DEADLINE_S)
    assert terminal.shown == [f"line {number}" for number in range(1000)]
    assert looks == []
