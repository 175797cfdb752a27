"""A group that is sent to a rank is called by it: as an argument, a result, an item, on its event loop too."""

import asyncio
import os
import pickle
import signal
import threading

import pytest

from rlinf.scheduler import Channel, NodePlacementStrategy, Worker, WorkerGroup
from rlinf_scheduler import WorkerGroup as CoreGroup
from rlinf_scheduler.errors import ClusterError, SchedulerError, WorkerError
from rlinf_scheduler.session import current_session
from waits import wait_until

DEADLINE_S = 60.0


class Engine(Worker):
    def generate(self, prompt):
        return f"{prompt} by {self._rank}"

    async def generate_later(self, prompt):
        await asyncio.sleep(0)
        return f"{prompt} by {self._rank}"

    def count(self, number):
        yield from range(number)

    def pid(self):
        return os.getpid()

    def hold(self):
        """Until the rank ends."""
        self.holds = True
        threading.Event().wait(DEADLINE_S)

    def die_the_first_time(self, path):
        """Dies in the middle, and notes each time that it begins."""
        with open(path, "a") as begun:
            begun.write(f"{self._rank}\n")
        if self.num_restarts == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    async def held(self):
        return hasattr(self, "holds")

    def shutdown(self):
        return "mine"


class Router(Worker):
    def take(self, engines):
        self.engines = engines
        return CoreGroup.plain(engines).name, CoreGroup.plain(engines).ranks, type(engines).__name__

    def route(self, prompt):
        return self.engines.generate(prompt).wait(DEADLINE_S)

    async def route_later(self, rank, prompt):
        return await self.engines.execute_on(rank).generate_later(prompt).async_wait()

    def stream(self):
        return list(self.engines.count(2))

    def failure(self):
        try:
            self.engines.generate("x").wait(DEADLINE_S)
        except WorkerError as error:
            return type(error).__name__, error.rank
        return None

    def call_and_lose(self, rank):
        """What a call comes to when this process cannot talk any more with the rank, which lives."""
        messenger, view = current_session().messenger, self.engines.execute_on(rank)
        held = view.retrying().hold()
        wait_until(lambda: view.held().wait(DEADLINE_S) == [True])
        process_id = CoreGroup.plain(self.engines)._shared.rank(rank).endpoint.process_id
        messenger.submit(lambda: messenger.peers.lose(messenger.peers.by_id[process_id], "it is garbled"))
        try:
            held.wait(DEADLINE_S)
        except SchedulerError as error:
            return type(error).__name__, str(error)
        return None

    def call_twice_at_once(self, path):
        """What two calls come to of which the second is made before the first has been sent."""
        messenger, made = current_session().messenger, threading.Event()
        messenger.submit(lambda: made.wait(DEADLINE_S))
        view = self.engines.execute_on(1)
        calls = view.die_the_first_time(path), view.generate("after it")
        made.set()
        ends = []
        for call in calls:
            try:
                ends.append(call.wait(DEADLINE_S))
            except SchedulerError as error:
                ends.append(type(error).__name__)
        return ends

    def end(self, what):
        getattr(CoreGroup, what)(self.engines)

    def users_shutdown(self):
        return self.engines.shutdown().wait(DEADLINE_S)

    def give_back(self):
        return self.engines[1:]

    def from_channel(self):
        return Channel.connect("groups").get(timeout_s=DEADLINE_S).generate("z").wait(DEADLINE_S)


@pytest.fixture
def engines(forked_job):
    return launched(forked_job, Engine, "engines", on_failure="ignore")


@pytest.fixture
def router(forked_job):
    return launched(forked_job, Router, "router")


def launched(job, worker_class, name, **options):
    strategy = NodePlacementStrategy([0, 1] if worker_class is Engine else [0])
    return worker_class.create_group().launch(job, strategy, name, **options)


def wait(result):
    (only,) = result.wait(DEADLINE_S)
    return only


def test_a_rank_calls_a_group_that_it_was_given(engines, router):
    assert wait(router.take(engines)) == ("engines", (0, 1), "WorkerGroup")
    assert wait(router.route("a")) == ["a by 0", "a by 1"]
    assert wait(router.route_later(1, "b")) == ["b by 1"]
    assert wait(router.stream()) == [[0, 0], [1, 1]]
    assert wait(router.users_shutdown()) == ["mine", "mine"]


def test_a_view_of_a_group_is_sent_as_that_view(engines, router):
    assert wait(router.take(engines[1:]))[:2] == ("engines", (1,))
    assert wait(router.route("c")) == ["c by 1"]


def test_a_group_comes_back_as_a_result_and_goes_through_a_channel(engines, router):
    wait(router.take(engines))
    again = wait(router.give_back())
    assert isinstance(again, WorkerGroup)
    assert again.generate("d").wait(DEADLINE_S) == ["d by 1"]
    Channel.create("groups").put(engines)
    assert wait(router.from_channel()) == ["z by 0", "z by 1"]


def test_a_rank_that_dies_ends_the_calls_of_those_that_were_given_its_group(engines, router):
    wait(router.take(engines))
    os.kill(engines.pid().wait(DEADLINE_S)[1], signal.SIGKILL)
    assert wait(router.failure()) == ("WorkerDied", 1)
    assert wait(router.failure()) == ("WorkerDied", 1)
    assert wait(router.route_later(0, "e")) == ["e by 0"]


def test_a_successor_is_found(forked_job, router):
    engines = launched(forked_job, Engine, "returning", on_failure="restart")
    wait(router.take(engines))
    before = engines.pid().wait(DEADLINE_S)
    os.kill(before[1], signal.SIGKILL)
    assert wait(router.failure()) in (("WorkerDied", 1), None)
    assert wait(router.route("f")) == ["f by 0", "f by 1"]


def test_a_call_that_its_rank_has_begun_is_not_made_again_though_another_was_made_at_once(
    forked_job, router, tmp_path
):
    engines = launched(forked_job, Engine, "begun once", on_failure="restart")
    wait(router.take(engines))
    first, second = wait(router.call_twice_at_once(tmp_path / "begun"))
    assert ((tmp_path / "begun").read_text(), first) == ("1\n", "WorkerDied")
    assert second in ("WorkerDied", ["after it by 1"])


def test_a_rank_that_lives_and_cannot_be_talked_with_ends_the_calls_that_it_has(engines, router):
    wait(router.take(engines))
    name, problem = wait(router.call_and_lose(1))
    assert (name, "it is garbled" in problem) == ("WorkerDied", True), problem


@pytest.mark.parametrize("what", ["shutdown", "terminate"])
def test_only_who_launched_a_group_ends_it(engines, router, what):
    wait(router.take(engines))
    with pytest.raises(WorkerError, match="only the process that launched it can end it") as caught:
        wait(router.end(what))
    assert type(caught.value.cause) is ClusterError
    assert wait(router.route("g")) == ["g by 0", "g by 1"]


def test_a_process_outside_of_the_job_cannot_read_a_group(engines, monkeypatch):
    sent = pickle.dumps(engines)
    monkeypatch.setattr("rlinf_scheduler.worker.remote_group.current_session", outside)
    with pytest.raises(ClusterError, match="no part"):
        pickle.loads(sent)


def outside():
    raise ClusterError("this process is no part of a job")
