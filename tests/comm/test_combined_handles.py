"""One handle for several operations: complete with the last of them, or failed with the first that fails."""

import weakref
from concurrent.futures import CancelledError

import pytest

from rlinf_scheduler.comm.gathering import Gathered
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.waits import MESSAGE, Wait
from rlinf_scheduler.errors import PeerDied, RouteError


class Waited(Promise):
    """A promise that somebody is to keep, and that says whom it waits for."""

    def __init__(self, peer):
        super().__init__()
        self.peer = peer

    def awaits(self):
        return Wait(MESSAGE, f"recv('{self.peer}')", peers=(self.peer,))


@pytest.fixture
def promises():
    return [Waited(f"env:{rank}") for rank in range(3)]


def of(promises, finish=list, join=None):
    return Gathered([AsyncHandle(each) for each in promises], finish, "recv_from('env')", join)


def test_results_stand_in_the_order_of_the_handles_whichever_ends_first(promises):
    handle = of(promises)
    for place in (2, 0, 1):
        assert not handle.done()
        promises[place].set_result(place)
    assert handle.wait() == [0, 1, 2]
    assert [each.consumed.is_taken for each in promises] == [True] * 3


def test_none_of_them_counts_as_taken_before_all_are(promises):
    handle = of(promises)
    promises[0].set_result(0)
    with pytest.raises(TimeoutError):
        handle.wait(timeout_s=0)
    assert not promises[0].consumed.is_taken


def test_the_first_failure_ends_the_others_and_what_is_there_is_not_taken(promises):
    handle = of(promises)
    promises[0].set_result(0)
    promises[1].set_exception(PeerDied("env:1"))
    with pytest.raises(PeerDied, match="env:1"):
        handle.wait()
    assert promises[2].cancelled()
    assert not promises[0].consumed.is_taken


def test_what_is_given_up_gives_up_all(promises):
    handle = of(promises)
    promises[0].set_result(0)
    assert handle.cancel()
    with pytest.raises(CancelledError):
        handle.wait()
    assert [each.cancelled() for each in promises] == [False, True, True]
    assert not promises[0].consumed.is_taken


def test_operations_that_go_on_tell_together_what_they_failed_with(promises):
    def join(errors):
        return RouteError("env", "rollout", ", ".join(type(each).__name__ for each in errors))

    handle = of(promises, join=join)
    promises[1].set_exception(PeerDied("env:1"))
    assert not handle.done()
    promises[0].set_result(0)
    promises[2].set_exception(PeerDied("env:2"))
    with pytest.raises(RouteError, match="NoneType, PeerDied, PeerDied"):
        handle.wait()


@pytest.mark.parametrize("num_complete", [0, 2, 3])
def test_who_drops_it_drops_all_of_them_at_once(num_complete):
    promises = [Waited(f"env:{rank}") for rank in range(3)]
    gone = [weakref.ref(each) for each in promises]
    handle = of(promises)
    for each in promises[:num_complete]:
        each.set_result(0)
    del promises, handle
    each = None
    assert [ref() for ref in gone] == [None] * 3  # without the garbage collector


def test_a_wait_names_those_that_are_not_done(promises):
    handle = of(promises)
    promises[1].set_result(1)
    assert handle.awaits().operation == "recv_from('env')"
    assert handle.awaits().peers == ("env:0", "env:2")


def test_of_nothing_it_is_done_and_functions_are_chained_on_it():
    assert of([]).wait() == []
    assert of([]).then(len).wait() == 0


def test_what_is_done_already_is_seen(promises):
    for place, each in enumerate(promises):
        each.set_result(place)
    assert of(promises, sum).wait() == 3
    late = Waited("late")
    late.set_exception(PeerDied("late"))
    with pytest.raises(PeerDied):
        of([late, Waited("never")]).wait()
