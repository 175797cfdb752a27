import asyncio
import gc
import threading
from concurrent.futures import CancelledError

import pytest

from rlinf_scheduler.comm import AsyncHandle
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import ResultTimeout

DEADLINE_S = 60.0


def handle_of(value):
    return AsyncHandle.completed(value)


def failed(error):
    source = Promise()
    source.set_exception(error)
    return AsyncHandle(source)


def test_wait_gives_the_result_again_and_again():
    handle = handle_of(3)
    assert handle.done()
    assert [handle.wait(), handle.result(), handle.wait(0)] == [3, 3, 3]


def test_a_wait_past_its_time_says_what_it_waited_for_and_the_operation_goes_on():
    source = Promise()
    handle = AsyncHandle(source, None, "recv from 'rollout:3'")
    with pytest.raises(ResultTimeout, match=r"recv from 'rollout:3': no result after "):
        handle.wait(0.01)
    source.set_result(1)
    assert handle.wait() == 1


def test_an_operation_that_fails_with_a_timeout_error_is_not_taken_for_a_short_wait():
    with pytest.raises(TimeoutError, match="its own"):
        failed(TimeoutError("its own")).wait(1)


def test_the_result_is_finished_once_in_the_waiters_thread():
    source, threads = Promise(), []
    handle = AsyncHandle(source, lambda value: threads.append(threading.get_ident()) or value * 2)
    threading.Thread(target=source.set_result, args=(4,)).start()
    assert handle.wait(DEADLINE_S) == 8
    assert handle.wait() == 8
    assert threads == [threading.get_ident()]


def test_then_chains_and_leaves_the_first_handle_as_it_is():
    handle = handle_of(3)
    chained = handle.then(lambda value: value + 1).then(str)
    assert chained.wait() == "4"
    assert handle.wait() == 3


def test_a_function_that_raises_fails_the_chained_handle_alone():
    handle = handle_of(0)
    chained = handle.then(lambda value: 1 / value)
    with pytest.raises(ZeroDivisionError):
        chained.wait()
    assert isinstance(chained.exception(), ZeroDivisionError)
    assert handle.wait() == 0


def test_a_failure_passes_through_the_chain_without_running_it():
    ran = []
    chained = failed(ValueError("no")).then(ran.append)
    with pytest.raises(ValueError, match="no"):
        chained.wait()
    assert ran == []


def test_cancelling_ends_the_wait():
    handle = AsyncHandle(Promise())
    assert handle.cancel()
    assert handle.done()
    with pytest.raises(CancelledError):
        handle.wait()


def test_several_tasks_and_threads_may_wait_for_one_handle():
    source = Promise()
    handle = AsyncHandle(source, lambda value: value + 1)
    results = []

    async def one():
        return await handle

    async def main():
        tasks = [asyncio.create_task(one()) for _ in range(3)]
        thread = threading.Thread(target=lambda: results.append(handle.wait(DEADLINE_S)))
        thread.start()
        asyncio.get_running_loop().call_soon(lambda: source.set_result(1))
        results.extend(await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S))
        thread.join(DEADLINE_S)

    asyncio.run(main())
    assert results == [2] * 4


def test_a_cancelled_awaiter_leaves_the_operation_to_the_others():
    source = Promise()
    handle = AsyncHandle(source)

    async def one():
        return await handle

    async def main():
        impatient, patient = asyncio.create_task(one()), asyncio.create_task(one())
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.sleep(0)
        source.set_result("there")
        return await asyncio.wait_for(patient, DEADLINE_S)

    assert asyncio.run(main()) == "there"


def test_a_failure_is_raised_by_await():
    source = Promise()

    async def main():
        asyncio.get_running_loop().call_soon(source.set_exception, KeyError("gone"))
        await AsyncHandle(source)

    with pytest.raises(KeyError, match="gone"):
        asyncio.run(main())


def test_an_answer_after_the_event_loop_is_closed_harms_nobody(caplog):
    source = Promise()
    handle = AsyncHandle(source)

    async def begin():
        waiting = handle.__await__()
        next(waiting)
        return waiting

    waiting = asyncio.run(begin())
    source.set_result(1)
    assert handle.wait() == 1
    waiting.close()
    assert caplog.text == ""


def test_a_failed_handle_may_be_dropped(caplog):
    failed(ValueError("nobody looks")).then(print)
    gc.collect()
    assert caplog.text == ""


def test_an_await_that_is_cancelled_cancels_the_operation_unless_it_is_shielded():
    async def give_up(awaitable):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(awaitable, 0.01)

    async def shielded(handle):
        await give_up(asyncio.shield(handle))
        kept.append(handle.done())

    lost, kept = Promise(), []
    asyncio.run(give_up(AsyncHandle(lost)))
    assert lost.cancelled()
    asyncio.run(shielded(AsyncHandle(Promise())))
    assert kept == [False]
