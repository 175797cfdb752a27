"""Many are asked at once: who is late, who fails, and when each was asked."""

import gc
import time
import weakref

import pytest

from comm_fixtures import secret, session
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import CommError
from rlinf_scheduler.observe import survey
from rlinf_scheduler.observe.levels import Level, Levels
from rlinf_scheduler.observe.own_activity import OwnActivity
from rlinf_scheduler.observe.survey import Inquiry, Poll
from rlinf_scheduler.session import Session
from waits import wait_until

__all__ = ["secret", "session"]
DEADLINE_S = 60.0
QUESTION = Level("test", int, int)


@pytest.fixture
def ask(session, monkeypatch):
    """Asks processes, who answer a number as the function of their name does."""
    monkeypatch.setattr(survey, "PATIENCE_S", 0.0)
    members = []

    def asked(inquiry, **answers):
        known = {}
        for name, answer in answers.items():
            member = Session(session.secret, name, home=session.home)
            members.append(member)
            member.service(Levels).add(QUESTION, answer)
            known[member.messenger.endpoint.process_id] = name, member.service(OwnActivity).enlisted
        done = Promise()
        asking = Poll(session, inquiry, known, [each for _, each in known.values()], done, (0,))
        session.messenger.submit(asking.begin)
        return done.result(DEADLINE_S)

    yield asked
    for member in members:
        member.close()


def failing(question):
    raise OSError("no space left")


@pytest.mark.parametrize("is_patient", [False, True])
def test_one_that_is_late_is_waited_for_by_who_is_patient(ask, session, monkeypatch, is_patient):
    held, looked, look_at = Promise(), [], survey.look_at

    def answer_if_looked_at():
        if is_patient and looked:
            held.set_result(2)

    def hold(question):
        assert question == 1
        answer_if_looked_at()
        return held

    def look_and_let_it_answer(*about):
        looked.append(about)
        # After what was seen has been noted.
        session.messenger.call_later(0.1, answer_if_looked_at)
        return look_at(*about)

    monkeypatch.setattr(survey, "look_at", look_and_let_it_answer)
    began = time.monotonic()
    found = ask(Inquiry(QUESTION, DEADLINE_S, 1, is_patient=is_patient), env=hold)
    if is_patient:
        (answer,) = found.answers
        assert (found.heads, found.silent) == ((0, 2), ())
        assert began < answer.asked_at < answer.answered_at < began + found.took_s + DEADLINE_S
        assert answer.endpoint.process_id != session.messenger.endpoint.process_id
    else:
        assert (found.heads, [each.process for each in found.silent]) == ((0,), ["env"])


def test_one_that_fails_is_told_of_with_its_error(ask):
    found = ask(Inquiry(QUESTION, DEADLINE_S, 1, is_patient=True), env=failing)
    ((process, detail),) = [(each.process, each.detail) for each in found.silent]
    assert (process, found.heads) == ("env", (0,))
    assert "no space left" in detail
    assert found.took_s < DEADLINE_S


def test_what_all_have_said_goes_without_a_collector(ask):
    gc.disable()
    try:
        found = weakref.ref(ask(Inquiry(QUESTION, 0.5, 1), env=lambda question: question))
        wait_until(lambda: found() is None)  # its deadline has it until then
    finally:
        gc.enable()


def test_one_that_answers_in_another_shape_is_told_of_at_once(ask):
    found = ask(Inquiry(QUESTION, DEADLINE_S, 1, is_patient=True), env=lambda question: "two")
    ((process, detail),) = [(each.process, each.detail) for each in found.silent]
    assert process == "env"
    assert "another shape" in detail
    assert found.took_s < DEADLINE_S


class Later(Promise):
    """Of a value that comes once somebody waits for it."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def add_done_callback(self, tell):
        super().add_done_callback(tell)
        self.set_result(self.value)


@pytest.mark.parametrize(
    ("answer", "beside"),
    [
        (lambda _about: "\ud800", False),
        (lambda _about: "\ud800", True),
        (lambda _about: Later("\ud800"), False),
        (failing, True),
    ],
)
def test_what_cannot_be_answered_fails_the_question_at_once(session, answer, beside):
    level = Level("test", str)
    session.service(Levels).add(level, answer, beside=beside)
    asked = level.ask(session.messenger, session.home, timeout_s=DEADLINE_S)
    with pytest.raises((UnicodeError, OSError), match=r"surrogates|no space left"):
        asked.result(DEADLINE_S)


def test_an_answer_of_another_shape_is_said_to_be_one(session):
    session.service(Levels).add(Level("test", str), lambda _about: "two")
    asked = QUESTION.ask(session.messenger, session.home, timeout_s=DEADLINE_S)
    with pytest.raises(CommError, match="another shape"):
        QUESTION.answer(asked.result(DEADLINE_S))
