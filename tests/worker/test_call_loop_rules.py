"""What a rank does with the calls that arrive: every order of events, on this thread, without a messenger."""

import asyncio
import errno
import os
import threading
import weakref
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.comm import encode
from rlinf_scheduler.comm.failure import load_failure
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.errors import SharedMemoryUnreadable
from rlinf_scheduler.host import call_loop, protocol
from rlinf_scheduler.host.call_loop import CallLoop

DEADLINE_S = 60.0
CALLERS = ("driver", "actor:0")


class Callers:
    """What a rank has instead of a messenger: those who call it, played by the test."""

    def __init__(self):
        self.payloads = self
        self.readable = True
        self.shares_memory = False
        self.answers = {}
        self.lent = []
        self.failed, self.kept_when_taken = [], []
        self._takes = []
        self._services = {}
        self.loop = CallLoop(self)
        self.worker = Notes()
        self.loop.take(self.worker)

    # What a messenger does.

    def serve(self, service, handler, _message_type):
        self._services[service] = handler

    def on_peer_lost(self, callback):
        self.lose = callback

    def submit(self, callback):
        """The I/O thread answers, and the caller takes what it gets, before this thread goes on."""
        callback()
        del callback
        while self._takes:
            self._takes.pop()(True)
            self.kept_when_taken.append(self.lent.pop()() is not None)

    def stay_while(self, _busy):
        pass

    # What its payloads do.

    def see_released(self):
        pass

    def receive(self, frames):
        if not self.readable:
            raise SharedMemoryUnreadable("out of descriptors")
        return ReceivedPayload(frames)

    def release_dropped(self):
        pass

    def pack(self, encoded, _peer, **_options):
        payload = Result(encoded.snapshot(), self.shares_memory)
        self.lent.append(weakref.ref(payload))
        return payload

    # What the test does.

    def call(self, caller, number, method="note", *, readable=True):
        args = (number,) if method == "note" else ()
        frames = encode((args, {})).snapshot()
        self.readable = readable
        self._send(
            protocol.CALL,
            caller,
            protocol.CallRequest(method, number, "call"),
            frames,
        )

    def cancel(self, caller, number):
        self._send(protocol.CANCEL, caller, protocol.Cancel(number))

    def _send(self, service, caller, head, frames=()):
        def reply(answer, frames=(), on_confirmed=None, **_options):
            self.answers.setdefault((caller, head.number), []).append((answer, frames))
            if on_confirmed is not None:
                self._takes.append(on_confirmed)
            return True

        self._services[service](
            SimpleNamespace(
                peer_id=caller,
                peer_name=str(caller),
                head=head,
                frames=list(frames),
                reply=reply,
                fail=self.failed.append,
            )
        )

    def kinds(self, caller, number):
        return [type(answer) for answer, _ in self.answers.get((caller, number), [])]

    def run_all(self):
        """Run what there is to run, then come back."""
        self.call(None, -1, "leave")
        self.loop.run()


class Result:
    """What is sent, in shared memory or not."""

    def __init__(self, frames, in_shared_memory):
        self.in_shared_memory = in_shared_memory
        self._frames = frames

    def frames_for(self, _peer):
        return self._frames


class Notes:
    """A worker that notes what it is called with."""

    def __init__(self):
        self.heard = []

    def note(self, value):
        self.heard.append(value)

    def fail(self):
        raise LookupError("no data")

    def fail_as_cancelled(self):
        raise asyncio.CancelledError

    def end(self):
        self.close()

    async def wait_beside(self):
        pass

    def leave(self):
        raise SystemExit

    def _private(self):
        self.heard.append("private")


@pytest.fixture
def callers():
    return Callers()


def test_calls_run_in_the_order_of_their_arrival_whoever_makes_them(callers):
    for number in range(6):
        callers.call(CALLERS[number % 2], number)
    callers.run_all()
    assert callers.worker.heard == list(range(6))
    assert all(callers.kinds(CALLERS[n % 2], n) == [protocol.Returned] for n in range(6))


def test_a_result_is_kept_by_nobody_once_its_caller_has_it_also_while_its_thread_still_comes_back(callers):
    callers.shares_memory = True
    for number in range(3):
        callers.call("driver", number)
    callers.run_all()
    assert [callers.kinds("driver", number) for number in range(3)] == [[protocol.Returned]] * 3
    assert callers.kept_when_taken == [False] * 3
    assert callers.failed == []


def test_a_call_that_could_not_be_read_keeps_its_place_in_the_line(callers):
    callers.call("driver", 1, readable=False)
    callers.call("driver", 2)
    callers.call("driver", 1)
    callers.run_all()
    assert callers.worker.heard == [1, 2]
    assert callers.kinds("driver", 1) == [protocol.Unread, protocol.Returned]


def test_a_call_that_no_event_loop_can_be_had_for_fails(callers, monkeypatch):
    def refuse():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(call_loop, "_CallsEventLoop", refuse)
    callers.call("driver", 1, "wait_beside")
    ((_, frames),) = callers.answers["driver", 1]
    assert load_failure(frames[0]).text == "OSError: [Errno 24] Too many open files"


def test_a_rank_that_is_stopped_does_not_wait_for_arguments_any_more(callers):
    callers.call("driver", 1, readable=False)
    running = threading.Thread(target=callers.loop.run, daemon=True)
    running.start()
    (place,) = callers.loop._places.values()
    while not place._gates:
        assert running.is_alive()
    callers.loop.stop()
    running.join(DEADLINE_S)
    assert not running.is_alive()


def test_calls_that_stand_in_line_when_it_is_stopped_are_not_run(callers):
    callers.call("driver", 1)
    callers.loop.stop()
    callers.loop.run()
    assert callers.worker.heard == []


def test_a_call_that_goes_on_as_its_process_ends_is_told_so_and_none_begins_after_it(callers):
    callers.worker.close = callers.loop.close
    callers.call("driver", 1, "end")
    callers.call("driver", 2)
    callers.loop.run()
    callers.call("driver", 3, "wait_beside")
    assert callers.kinds("driver", 1)[0] is protocol.Abandoned
    assert callers.kinds("driver", 2) == callers.kinds("driver", 3) == []
    assert callers.worker.heard == []
    assert not callers.loop._jobs.pop(("driver", 2)).claim()


def test_a_call_that_comes_as_the_last_one_is_answered_is_run_or_never_begun(callers, monkeypatch):
    """Its arrival falls between the look whether all are answered and the end that follows."""
    stop = callers.loop.stop

    def stop_late():
        callers.call("actor:0", 1, "wait_beside")
        stop()

    monkeypatch.setattr(callers.loop, "stop", stop_late)
    callers.call("driver", 1)
    callers.worker.close = callers.loop.finish
    callers.call("driver", 2, "end")
    callers.loop.run()
    assert callers.worker.heard == [1]
    assert callers.loop._loop is None


@pytest.mark.parametrize(
    ("method", "told"), [("fail", "no data"), ("_private", "private"), ("fail_as_cancelled", "Cancelled")]
)
def test_what_a_method_raises_is_the_answer_and_the_line_goes_on(callers, method, told):
    callers.call("driver", 1, method)
    callers.call("driver", 2)
    callers.run_all()
    ((answer, frames),) = callers.answers["driver", 1]
    # That it was cancelled is its caller's word alone.
    assert type(answer) is protocol.Raised
    failure = load_failure(frames[0])
    assert told in failure.text + failure.traceback
    assert callers.worker.heard == [2]


EVENTS = st.tuples(
    st.sampled_from(["call", "call that cannot be read", "bytes", "cancel", "lose"]),
    st.sampled_from(CALLERS),
    st.integers(0, 3),
)


@given(st.lists(EVENTS, max_size=20))
def test_every_call_runs_once_at_most_in_its_place_and_has_one_answer(events):
    callers = Callers()
    line, open_places, waiting, over = [], [], set(), set()
    for kind, caller, which in events:
        number = len(line) + 1
        if kind.startswith("call"):
            readable = kind == "call"
            callers.call(caller, number, readable=readable)
            line.append((caller, number))
            if readable:
                waiting.add((caller, number))
            else:
                open_places.append((caller, number))
        elif kind == "bytes" and open_places:
            key = open_places.pop(which % len(open_places))
            callers.call(*key)
            waiting.add(key)
        elif kind == "cancel" and line:
            key = line[which % len(line)]
            callers.cancel(*key)
            over |= {key} & waiting
        elif kind == "lose":
            callers.lose(caller)
            over |= {key for key in open_places if key[0] == caller}
            open_places = [key for key in open_places if key[0] != caller]
    for caller in CALLERS:
        callers.lose(caller)
    over |= set(open_places)
    callers.run_all()
    assert callers.worker.heard == [number for caller, number in line if (caller, number) not in over]
    for key in line:
        answers = [kind for kind in callers.kinds(*key) if kind is not protocol.Unread]
        if key in waiting:
            assert answers == [protocol.Cancelled if key in over else protocol.Returned]
        else:
            assert answers == []
    assert callers.loop._jobs == {}
    assert callers.loop._places == {}
