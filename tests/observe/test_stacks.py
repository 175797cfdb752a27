"""What threads and tasks are at, read off their stacks."""

import asyncio
import faulthandler
import gc
import os
import signal
import sys
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from programs import run_program
from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.rundir import STACKS_NAME
from rlinf_scheduler.comm.waits import OTHER, Wait, awaited
from rlinf_scheduler.observe import outside, stacks
from rlinf_scheduler.observe.outside import look_at
from rlinf_scheduler.observe.process_stats import Enlist, Stack
from rlinf_scheduler.observe.stacks import Threads, callee_of, frames_of_threads, stack_of
from rlinf_scheduler.proc import birth_of
from rlinf_scheduler.session import current_session
from waits import wait_until

DEADLINE_S = 60.0


@contextmanager
def thread_in(function, *args):
    """A thread that runs something until the block ends; gives what says where it is."""
    name = f"thread-of-{function.__name__}"
    thread = threading.Thread(target=function, args=args, name=name)
    thread.start()
    threads = Threads()
    try:
        yield lambda: next((stack for stack in threads.stacks() if stack.name == name), Stack(name, ()))
    finally:
        args[0].set() if isinstance(args[0], threading.Event) else args[0].set_result(None)
        thread.join(DEADLINE_S)


def stand(event):
    event.wait(DEADLINE_S)


@awaited(lambda local: Wait(OTHER, f"as {local['name']}"))
def wait_as(promise, name):
    promise.wait(DEADLINE_S)


def fail_to_say(promise):
    _ambiguous(promise)


@awaited(lambda local: Wait(OTHER, local["not there"]))
def _ambiguous(promise):
    promise.wait(DEADLINE_S)


def test_a_thread_stands_where_the_users_code_calls_something():
    with thread_in(stand, threading.Event()) as look:
        wait_until(lambda: any(frame.calls for frame in look().frames))
        frame = next(frame for frame in look().frames if frame.calls)
    assert (os.path.basename(frame.file), frame.function, frame.calls) == (
        "test_stacks.py",
        "stand",
        "event.wait",
    )


# In a process in which no other test has left a thread.
ASKS = """
from rlinf.testing import LocalRuntime
from rlinf_scheduler.observe.why import ask_job, why_of

with LocalRuntime() as session:
    # One in ten meets that moment.
    print({str(why_of(ask_job(session))) for _ in range(200)})
"""


def test_a_thread_that_asks_what_all_are_at_is_at_no_moment_told_of_as_at_work():
    # Its own process is looked at when the question arrives: the thread may wait by then, or be about to.
    done = run_program("-c", ASKS, timeout=DEADLINE_S)
    assert done.stdout == "{'nobody waits for anybody'}\n", done.stderr


def test_since_when_it_stands_there_is_known_once_somebody_has_looked():
    with thread_in(stand, threading.Event()) as look:
        wait_until(lambda: look().same_for_s > 0)
        before = look()
        # It may have been about to stand still.
        wait_until(
            lambda: (at := look()).still_for_s > before.same_for_s and at.same_for_s > before.same_for_s
        )


def come_by(event):
    while not event.wait(0.0001):
        pass


def test_who_comes_by_the_same_line_again_and_again_does_not_stand_there():
    with thread_in(come_by, threading.Event()) as look:
        wait_until(lambda: any(frame.calls for frame in look().frames))
        wait_until(lambda: (at := look()).same_for_s > 0.1 and at.still_for_s < at.same_for_s / 2)


def test_a_thread_waits_for_what_its_local_variables_say():
    with thread_in(wait_as, Promise(), "somebody") as look:
        wait_until(lambda: look().wait is not None)
        assert look().wait.operation == "as somebody"


def test_variables_that_are_not_there_say_nothing():
    with thread_in(fail_to_say, Promise()) as look:
        wait_until(lambda: len(look().frames) > 4)
        assert look().wait is None


def test_the_tasks_of_an_event_loop_are_seen():
    async def awaiting(channel, seen):
        getting = asyncio.gather(take(channel), channel.get("beside", async_op=True))
        while not seen():
            await asyncio.sleep(0.001)
        for queue in ("default", "beside"):
            await channel.put("an item", queue_name=queue, async_op=True)
        return (await getting)[0]

    async def take(channel):
        return await channel.get(async_op=True)

    def operations():
        return [stack.wait.operation for stack in Threads().stacks() if stack.wait is not None]

    def seen():
        found = []
        looking = threading.Thread(target=lambda: found.extend(operations()))
        looking.start()
        looking.join(DEADLINE_S)
        return {"get('awaited')", "get('awaited', 'beside')"} <= {*found}

    with LocalRuntime():
        assert asyncio.run(awaiting(Channel.create("awaited"), seen)) == "an item"


def test_of_a_crowd_of_tasks_so_many_are_looked_at_that_it_takes_no_time(monkeypatch):
    looked_at = []
    monkeypatch.setattr(stacks, "wait_in", lambda frames: looked_at.append(frames))

    async def look_at(num_tasks):
        over = asyncio.Event()
        crowd = [asyncio.ensure_future(over.wait()) for _ in range(num_tasks)]
        main, looked = threading.get_ident(), threading.Event()
        loop = asyncio.get_running_loop()

        def look():
            wait_until(lambda: frames_of_threads(list)[main][0].f_code.co_filename.endswith("/selectors.py"))
            Threads().longest_wait()
            Threads().stacks()
            loop.call_soon_threadsafe(over.set)
            looked.set()

        threading.Thread(target=look).start()
        await asyncio.gather(*crowd)
        assert looked.wait(DEADLINE_S)

    asyncio.run(look_at(20 * stacks.MAX_TASKS))
    assert stacks.MAX_TASKS <= len(looked_at) < 4 * stacks.MAX_TASKS


def test_a_collective_has_waited_since_its_thread_was_seen_to_run_last():
    code = "def all_reduce(promise):\n    promise.acquire()\n"
    there = {}
    exec(compile(code, "/site-packages/torch/distributed/distributed_c10d.py", "exec"), there)
    gate = threading.Lock()
    gate.acquire()
    thread = threading.Thread(target=there["all_reduce"], args=(gate,))
    thread.start()
    threads, number = Threads(), thread.ident
    try:
        wait_until(lambda: number in threads.waits({number}))
        # Each look sees whether it has run since the one before.
        wait_until(lambda: [each for each in threads.stacks() if each.wait and each.wait.since_s > 0.05])
        assert threads.waits({number})[number].since_s > 0.05
    finally:
        gate.release()
        thread.join(DEADLINE_S)
    assert threads.waits({number}) == {}


def called_by(depth):
    frame = sys._getframe(depth)
    return callee_of(frame.f_code, frame.f_lasti)


def test_what_is_called_is_named_without_its_arguments():
    here = sys.modules[__name__]
    # Not in the statements of the assertions, which are rewritten.
    found = [called_by(1), here.called_by(max(1, 0)), *list(map(called_by, [1]))]
    assert found == ["called_by", "here.called_by", "list"]


def test_a_process_that_leaves_its_job_leaves_no_file_of_stacks():
    with LocalRuntime():
        directory = current_session().messenger.run_directory
        assert (directory / STACKS_NAME).exists()
    assert not directory.exists()


def test_a_stack_of_nothing():
    assert stack_of("task", []).frames == ()


def test_a_process_that_has_ended_is_gone_and_another_ones_number_is_no_sign():
    with LocalRuntime() as runtime:
        own = runtime.messenger.endpoint
        gone = look_at("actor:0", Enlist(own, os.getpid(), birth_of(os.getpid()) + 1, 1))
        assert gone.state == "gone"
        # It answers, so it is not asked; of one that has no handler no stacks are asked for.
        stuck = look_at("actor:0", Enlist(own, os.getpid(), birth_of(os.getpid()), 0))
        assert (stuck.state, stuck.stacks) == ("stuck", ())


@pytest.mark.parametrize("pid", [0, 2**22 + 1])
def test_a_number_that_no_process_has(pid):
    assert birth_of(pid) == 0


def test_who_is_asked_for_its_stacks_again_and_again_fills_no_disk(tmp_path):
    number, path = signal.SIGRTMAX - 7, tmp_path / STACKS_NAME
    first = f"{threading.main_thread().ident:x}\n".encode()
    path.write_bytes(first + b"x" * outside.MAX_BYTES)
    endpoint = SimpleNamespace(unix_path=str(tmp_path / "socket"))
    with path.open("ab") as file:
        faulthandler.register(number, file, all_threads=True)
        try:
            stacks = outside.stacks_by_signal(endpoint, os.getpid(), number, DEADLINE_S)
        finally:
            faulthandler.unregister(number)
    assert [stack.name for stack in stacks][:1] == ["MainThread"]
    data = path.read_bytes()
    assert data.startswith(first)
    assert len(data) < outside.MAX_BYTES


COLLECTED_MEANWHILE = """
import gc, threading
from rlinf_scheduler.observe.stacks import frames_of_threads

class Knot:
    def __init__(self):
        self.itself, self.local = self, threading.local()
        self.local.value = self

release = threading.Event()
threads = [threading.Thread(target=release.wait) for _ in range(50)]
for thread in threads:
    thread.start()
for threshold in range(1, 60):
    gc.disable()
    gc.collect()
    knots = [Knot() for _ in range(3)]
    del knots
    gc.set_threshold(threshold + gc.get_count()[0])
    gc.enable()
    frames_of_threads(list)
release.set()
print("done")
"""


def test_what_is_collected_while_all_threads_are_looked_at_stops_nobody():
    assert run_program("-c", COLLECTED_MEANWHILE, timeout=DEADLINE_S).stdout == "done\n"


def test_nothing_is_collected_while_frames_of_threads_are_walked():
    seen = frames_of_threads(lambda frames: (gc.isenabled(), [frame.f_code.co_name for frame in frames]))
    assert not any(collects for collects, _ in seen.values())
    assert sys._getframe().f_code.co_name in seen[threading.get_ident()][1]
    assert gc.isenabled()
