"""Exceptions on their way to another process."""

import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import slow_errors
from rlinf_scheduler.comm.failure import Failure, UnreadError, dump_failure, load_failure, read_error
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import ChannelExists, CommError, LaunchError, WorkerError
from slow_errors import DEADLINE_S, SlowError


class Unpicklable(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def raised(error, cause=None):
    try:
        if cause is None:
            raise error
        try:
            raise cause
        except type(cause) as inner:
            raise error from inner
    except BaseException as caught:  # noqa: BLE001 - as it was raised
        return caught


def sent(error):
    return load_failure(dump_failure(error))


def test_type_text_cause_and_traceback_arrive():
    failure = sent(raised(LaunchError("actor", "rank 0 failed"), ZeroDivisionError("by zero")))
    error = failure.load()
    assert isinstance(error, LaunchError)
    assert error.group == "actor"
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert error.__cause__.args == ("by zero",)
    assert "direct cause" in failure.traceback
    assert "in raised" in failure.traceback
    assert failure.text == "LaunchError: group 'actor': rank 0 failed"


def test_what_was_handled_while_it_was_raised_counts_as_its_cause_unless_that_is_suppressed():
    def fail(suppress):
        try:
            raise KeyError("first")
        except KeyError:
            if suppress:
                raise ValueError("second") from None
            raise ValueError("second")  # noqa: B904

    causes = []
    for suppress in (False, True):
        with pytest.raises(ValueError, match="second") as caught:
            fail(suppress)
        causes.append(type(sent(caught.value).load().__cause__))
    assert causes == [KeyError, type(None)]


def test_a_circle_of_causes_ends():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert len(sent(first).chain) == 2


def test_a_cause_that_pickle_cannot_carry_leaves_its_text():
    error = sent(raised(ChannelExists("items", "taken"), Unpicklable("has a lock"))).load()
    assert isinstance(error, ChannelExists)
    assert isinstance(error.__cause__, CommError)
    assert str(error.__cause__) == "Unpicklable: has a lock"


def test_an_exception_that_pickle_cannot_carry_is_told_with_who_raised_it():
    failure = sent(raised(Unpicklable("has a lock")))
    assert failure.load() is None
    told = read_error(failure.error("rollout:3"))
    assert isinstance(told, CommError)
    assert str(told) == ("'rollout:3' failed with an error that cannot be read here: Unpicklable: has a lock")


@pytest.mark.parametrize("text", ["\udcff half a pair", "x" * 1_000_000, ""])
def test_any_text_arrives(text):
    failure = sent(raised(ValueError(text)))
    assert failure.text.startswith("ValueError")
    assert len(failure.text) < 200_000
    assert failure.load().args == (text,)


def test_an_exception_without_a_text_is_told_by_its_type():
    failure = sent(raised(Unreadable()))
    assert failure.text == "Unreadable"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_what_is_no_exception_of_a_program_is_itself(error):
    assert type(sent(raised(error)).load()) is type(error)


def test_a_failure_that_is_not_sent_says_the_same():
    error = raised(ValueError("here"))
    assert sent(error) == Failure.of(error)


def test_a_mistake_of_a_program_has_a_note_of_where_it_was_raised_and_a_known_error_has_none():
    mistake = sent(raised(TypeError("a mistake"))).error("rollout:3")
    assert type(mistake) is TypeError
    (note,) = mistake.__notes__
    assert note.startswith("raised in 'rollout:3':\nTraceback")
    assert "in raised" in note
    assert not hasattr(sent(raised(ChannelExists("items", "taken"))).error("rollout:3"), "__notes__")


@pytest.fixture
def readings():
    slow_errors.readings.clear()
    return slow_errors.readings


def test_a_known_error_is_itself_at_once_and_reads_what_caused_it_when_it_is_taken(readings):
    sent_error = sent(raised(LaunchError("actor", "rank 0 failed"), SlowError("so")))
    readings.clear()  # whether it can be read is tried where it is raised
    error = sent_error.error("driver")
    assert type(error) is LaunchError
    assert isinstance(error.__cause__, UnreadError)
    assert str(error.__cause__) == "SlowError: so"
    assert not readings
    assert read_error(error) is error
    assert type(error.__cause__) is SlowError
    assert len(readings) == 1


@pytest.mark.parametrize(
    "error",
    [SlowError("so"), WorkerError("actor", 0, "act", "Traceback", SlowError("so"))],
    ids=["own", "held"],
)
def test_an_error_with_a_foreign_class_in_it_is_read_when_it_is_taken(error, readings):
    failure = sent(raised(error))
    readings.clear()
    unread = failure.error("rollout:3")
    assert isinstance(unread, UnreadError)
    assert str(unread).startswith(f"'rollout:3' failed: {type(error).__name__}: ")
    assert not readings
    assert type(read_error(unread)) is type(error)
    assert len(readings) == 1


def test_an_error_that_nobody_has_read_goes_on_as_it_came(readings):
    failure = sent(raised(ValueError("mine"), SlowError("so")))
    whole = sent(raised(SlowError("so")))
    readings.clear()
    assert sent(whole.error("rollout:3")) == whole
    again = sent(failure.error("rollout:3"))
    assert again.chain[1:] == failure.chain[1:]
    assert str(pickle.loads(pickle.dumps(whole.error("rollout:3")))) == "'rollout:3' failed: SlowError: so"
    assert not readings


class Alarm(Exception):
    """What a signal handler of a user's raises."""


def test_an_interruption_while_an_error_is_read_is_no_reason_to_take_it_for_unreadable(readings):
    promise = Promise()
    promise.set_exception(sent(raised(SlowError("so"))).error("rollout:3"))
    readings.clear()  # whether it can be read is tried where it is raised

    def interrupt(_number, _frame):
        if readings:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise Alarm

    before = signal.signal(signal.SIGALRM, interrupt)
    slow_errors.gate.clear()
    try:
        with pytest.raises(Alarm):  # noqa: PT012 - the signal may come at once
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.05)
            promise.result()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        slow_errors.gate.set()
    with pytest.raises(SlowError, match="so"):
        promise.result()


def test_a_class_that_takes_long_to_import_holds_up_only_who_takes_the_error(pair, readings):
    client, server = pair
    server.serve(
        "fail", lambda request: threading.Thread(target=request.fail, args=[SlowError("so")]).start(), None
    )
    server.serve("echo", lambda request: request.reply(request.head), int)
    failing = client.request(server.endpoint, "fail", None)
    assert failing.wait(DEADLINE_S)
    slow_errors.gate.clear()
    try:
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(failing.exception)
            assert client.request(server.endpoint, "echo", 3, reply_type=int).result(DEADLINE_S).head == 3
            assert not taken.done()
            slow_errors.gate.set()
            assert type(taken.result(DEADLINE_S)) is SlowError
    finally:
        slow_errors.gate.set()
    assert readings
    assert not any(readings)
