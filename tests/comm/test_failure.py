"""Exceptions on their way to another process."""

import threading

import pytest

from rlinf.scheduler.comm.failure import Failure, dump_failure, load_failure
from rlinf.scheduler.errors import ChannelExists, CommError, LaunchError


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
    told = failure.error("rollout:3")
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
