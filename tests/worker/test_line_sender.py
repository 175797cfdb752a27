"""What ranks say to a home that is stopped: no more than a bound is kept in memory, and what is left out is told."""

import threading

import pytest

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.output import MAX_UNTAKEN_BYTES, LineSender
from rlinf_scheduler.session import Session
from waits import DEADLINE_S, wait_until

LINE = "x" * 8000
MANY = 2 * MAX_UNTAKEN_BYTES // len(LINE)


class Home:
    """The home of a job, whose I/O thread can be stopped; what it was told."""

    def __init__(self, secret):
        self.session = Session(secret, "driver")
        self.printed, self.logged = [], []
        self._goes_on = threading.Event()
        messenger = self.session.messenger
        messenger.serve(protocol.OUTPUT, lambda it: self.printed.extend(it.head.lines), protocol.OutputLines)
        messenger.serve(protocol.LOG, lambda it: self.logged.append(it.head.message), protocol.LogLine)

    def stop(self):
        stands = threading.Event()
        self._goes_on.clear()
        self.session.messenger.submit(lambda: (stands.set(), self._goes_on.wait(DEADLINE_S)))
        assert stands.wait(DEADLINE_S)

    def go_on(self):
        self._goes_on.set()


@pytest.fixture
def home(secret):
    home = Home(secret)
    yield home
    home.go_on()
    home.session.close()


@pytest.fixture
def rank(home):
    with Session(home.session.secret, "rollout:0", home=home.session.home) as session:
        yield session


def on_io_thread(session, step):
    done = Promise()
    session.messenger.submit(lambda: done.set_from(step))
    return done.result(DEADLINE_S)


def print_all(sender, lines):
    """Send lines as long as there is room; how many that were."""
    for number, line in enumerate(lines):
        if not sender.has_room():
            return number
        sender.send_output("stdout", [line])
    return len(lines)


def test_a_home_that_is_stopped_is_sent_no_more_than_the_bound_and_all_of_that_comes(home, rank):
    sender = LineSender(rank, WorkerAddress("rollout", 0), "")
    on_io_thread(rank, lambda: print_all(sender, ["first"]))
    wait_until(lambda: home.printed == ["first"])
    home.stop()
    num_sent = on_io_thread(rank, lambda: print_all(sender, [LINE] * MANY))
    assert num_sent * len(LINE) <= MAX_UNTAKEN_BYTES
    home.go_on()
    wait_until(lambda: on_io_thread(rank, sender.has_room))
    on_io_thread(rank, lambda: print_all(sender, ["last"]))
    wait_until(lambda: home.printed[-1] == "last")
    assert len(home.printed) == num_sent + 2


def test_log_lines_that_have_no_room_are_counted_and_told_of(home, rank):
    sender = LineSender(rank, WorkerAddress("rollout", 0), "/logs/rollout-0.log")
    on_io_thread(rank, lambda: print_all(sender, ["first"]))
    wait_until(lambda: home.printed)
    home.stop()

    def log_all():
        for _ in range(MANY):
            sender.send_log_line(20, LINE)

    on_io_thread(rank, log_all)
    home.go_on()
    wait_until(lambda: on_io_thread(rank, sender.has_room))
    on_io_thread(rank, lambda: sender.send_log_line(20, "last"))
    wait_until(lambda: home.logged and home.logged[-1] == "last")
    *lines, told, _ = home.logged
    assert set(lines) == {LINE}
    number = f"{MANY - len(lines):,}"
    assert told == (
        f"... {number} log lines were left out: nobody took them in time; they are in /logs/rollout-0.log"
    )


def test_a_home_that_takes_its_lines_is_sent_all_of_them(home, rank):
    sender = LineSender(rank, WorkerAddress("rollout", 0), "")
    num_sent = 0
    while num_sent < MANY:
        num_sent += on_io_thread(rank, lambda: print_all(sender, [LINE] * 10))
    wait_until(lambda: len(home.printed) == num_sent)
