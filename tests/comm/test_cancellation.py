"""Waits that somebody else ends."""

import asyncio
import threading

import pytest

from rlinf_scheduler.comm.cancellation import Scope, working_in
from rlinf_scheduler.comm.promise import Promise

DEADLINE_S = 60.0


def in_thread(function):
    """Runs a function; gives what ends and what it raised."""
    raised = []

    def run():
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - what a cancelled wait raises is none
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def test_a_wait_that_goes_on_ends_when_its_scope_is_cancelled():
    for _ in range(200):
        scope, began = Scope(), threading.Event()

        def wait(scope=scope, began=began):
            with working_in(scope):
                began.set()
                Promise().wait(DEADLINE_S)

        thread, raised = in_thread(wait)
        began.wait(DEADLINE_S)
        scope.cancel()
        thread.join(DEADLINE_S)
        assert [type(error) for error in raised] == [asyncio.CancelledError]


def test_a_cancellation_that_comes_early_ends_the_next_wait_and_not_the_one_after():
    scope, promise = Scope(), Promise()
    scope.cancel()
    with working_in(scope):
        with pytest.raises(asyncio.CancelledError):
            promise.wait(DEADLINE_S)
        assert promise.wait(0) is False
    assert scope.cancelled


def test_what_is_there_already_is_no_wait():
    scope, promise = Scope(), Promise()
    scope.cancel()
    promise.set_result(1)
    with working_in(scope):
        assert promise.result() == 1


def test_every_thread_that_waits_in_a_scope_is_told():
    scope, ready = Scope(), threading.Barrier(4)

    def wait():
        with working_in(scope):
            ready.wait(DEADLINE_S)
            Promise().wait(DEADLINE_S)

    running = [in_thread(wait) for _ in range(3)]
    ready.wait(DEADLINE_S)
    while len(scope._wakers) < 3:
        ready.broken  # noqa: B018 - until all three have begun
    scope.cancel()
    for thread, raised in running:
        thread.join(DEADLINE_S)
        assert [type(error) for error in raised] == [asyncio.CancelledError]


def test_a_result_and_a_cancellation_at_once_open_a_wait_once():
    for _ in range(300):
        scope, promise, began = Scope(), Promise(), threading.Event()

        def wait(scope=scope, promise=promise, began=began):
            with working_in(scope):
                began.set()
                promise.wait(DEADLINE_S)

        thread, _ = in_thread(wait)
        began.wait(DEADLINE_S)
        other = threading.Thread(target=scope.cancel)
        other.start()
        promise.set_result(None)
        other.join()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        assert not promise._gates


def test_waits_outside_the_scope_go_on():
    scope, promise = Scope(), Promise()
    with working_in(scope), working_in(None):
        scope.cancel()
        assert promise.wait(0.001) is False
