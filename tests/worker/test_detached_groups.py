"""Groups of a job that outlives its drivers: real processes, without Ray; drivers come, call, leave and are lost."""

import errno
import gzip
import json
import os
import queue
import re
import signal
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from functools import partial

import pytest
from detached_workers import Failing, Outer, Steady, Stuck

from alarms import Interrupted
from detached_forked_job import DetachedForkedJob
from forked_job import wait_for_ends
from rlinf.scheduler import Cluster, PackedPlacementStrategy
from rlinf_scheduler.channel import Channel
from rlinf_scheduler.comm.directory import GROUPS
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.detached import attach, end_job, nodes_of, trace
from rlinf_scheduler.errors import (
    ClusterError,
    CommError,
    CommTimeout,
    ConfigError,
    GroupExists,
    LaunchError,
    PlacementError,
    WorkerDied,
)
from rlinf_scheduler.events import (
    GroupLaunched,
    JobLost,
    WorkerLogged,
    WorkerLost,
    WorkerPrinted,
    WorkerReturned,
)
from rlinf_scheduler.observe.status_service import begin_status, received
from rlinf_scheduler.session import set_current
from rlinf_scheduler.tracing import detached
from rlinf_scheduler.tracing.detached import (
    DetachedTraces,
    TraceMaker,
    begin_wanted_trace,
    wanted_trace_file,
)
from rlinf_scheduler.tracing.service import TraceService
from rlinf_scheduler.worker import remote_group, remote_home, supervision
from rlinf_scheduler.worker.home_server import GroupServer
from rlinf_scheduler.worker.home_wire import LAUNCH, LaunchGroup
from rlinf_scheduler.worker.supervision import groups_of
from waits import seen, wait_until

MIB = 1 << 20
LEFT_OUT = re.compile(r"\.\.\. ([\d,]+) lines were left out: nobody read them in time")
ONE, TWO = PackedPlacementStrategy(0, 0), PackedPlacementStrategy(0, 1)


@pytest.fixture
def kept(monkeypatch):
    """The job server."""
    wait_for_ends(monkeypatch)
    job = DetachedForkedJob()
    yield job
    job.close()


@pytest.fixture
def driver(kept):
    return kept.attach()


def launch(driver, name, *args, placement=TWO, **options):
    return Steady.create_group(*args).launch(driver, placement, name=name, **options)


def names(job):
    return {group.name for group in groups_of(job.session)}


def test_a_driver_calls_what_the_job_server_has_launched_for_it(kept, driver):
    group = launch(driver, "policy", 7)
    assert [who[:4] for who in group.who().wait(60)] == [(0, 2, 0, 7), (1, 2, 0, 7)]
    assert [each.rank for each in group.placements] == [0, 1]
    assert [each.state for each in group.health()] == ["alive", "alive"]
    assert list(group.count(2)) == [[0, 0], [1, 1]]
    group.shutdown(60)
    assert {each.state for each in group.health()} == {"ended"}
    with pytest.raises(WorkerDied, match="the group was terminated"):
        group.who()
    assert names(kept) == set()


def test_a_detached_group_stays_when_its_driver_leaves_and_another_one_calls_it(kept, driver):
    group = launch(driver, "stays", 7, detached=True)
    launch(driver, "goes", placement=ONE)
    pids = [who[-1] for who in group.who().wait(60)]
    driver.session.close()
    assert names(kept) == {"stays"}
    second = kept.attach("driver@there.2")
    found = attach(second.session, "stays", None)
    assert [who[-1] for who in found.who().wait(60)] == pids
    typed = attach(second.session, "stays", Steady)
    assert typed.call(Steady.who).wait(60) == found.who().wait(60)
    with pytest.raises(
        ClusterError, match=r"no group 'stay' in this job: there are 'stays'; did you mean 'stays'\?"
    ):
        attach(second.session, "stay", None)
    found.terminate()
    wait_until(lambda: kept.living == 0)


def test_what_a_lost_driver_has_left_ends_and_what_is_detached_does_not(kept, driver):
    stays = launch(driver, "stays", placement=ONE, detached=True)
    launch(driver, "goes", placement=ONE)
    watcher = kept.attach("driver@there.2")
    found = attach(watcher.session, "goes", None)
    driver.session.messenger.close()  # as when it is killed: it says nothing
    wait_until(lambda: names(kept) == {"stays"})
    wait_until(lambda: found.health()[0].state == "ended")
    assert attach(watcher.session, "stays", None).name == stays.name


def test_a_call_of_a_driver_that_is_gone_is_given_up_and_others_go_on(kept, driver):
    group = launch(driver, "busy", placement=ONE, detached=True)
    group.wait_for_nobody()
    group.who()  # it waits for its turn
    second = kept.attach("driver@there.2")
    found = attach(second.session, "busy", None)
    driver.session.messenger.close()
    assert found.who().wait(45)[0][0] == 0


def test_every_driver_hears_of_a_death_and_calls_wait_for_the_successor(kept, driver):
    group = launch(driver, "back", on_failure="restart", detached=True)
    second = kept.attach("driver@there.2")
    found = attach(second.session, "back", None)
    heard = queue.SimpleQueue()
    second.session.bus.subscribe(heard.put)
    with pytest.raises(WorkerDied, match=r"rank 1 of 'back' died during die\(\)"):
        group.execute_on(1).die().wait(60)
    assert next_of(heard, (WorkerLost, WorkerReturned)).reason
    assert [who[2] for who in found.who().wait(60)] == [0, 1]
    assert [who[2] for who in group.who().wait(60)] == [0, 1]
    assert found.health()[1].num_restarts == 1
    assert next_of(heard, (WorkerLost, WorkerReturned)).num_restarts == 1
    found.restart(0, 60)
    assert [who[2] for who in group.who().wait(60)] == [1, 1]


def test_every_driver_hears_that_a_whole_group_starts_anew_and_its_calls_end_or_are_made_again(kept, driver):
    group = launch(driver, "whole", on_failure="restart_group", detached=True)
    second = kept.attach("driver@there.2")
    found = attach(second.session, "whole", None)
    pids = {who[-1] for who in group.who().wait(60)}
    held, again = group.execute_on(0).hold_on(), found.retrying().die_once()
    with pytest.raises(WorkerDied, match=r"rank 1 of 'whole' died during hold_on\(\)"):
        held.wait(60)
    assert again.wait(60) == [1, 1]
    assert [who[2] for who in group.who().wait(60)] == [1, 1]
    assert not pids & {who[-1] for who in found.who().wait(60)}
    assert [each.num_restarts for each in found.health()] == [1, 1]


def test_a_call_to_a_rank_that_died_before_it_left_waits_for_the_successor(kept, driver):
    group = launch(driver, "back", on_failure="restart", detached=True)
    second = kept.attach("driver@there.2")
    found = attach(second.session, "back", None)
    (pid,) = (who[-1] for who in group.execute_on(1).who().wait(60))
    news = Promise()
    stand(kept, news)  # no driver hears of the death from its job server
    try:
        os.kill(pid, signal.SIGKILL)
        # Its connections are closed one by one: what goes into one that is not yet may have been begun.
        wait_until(lambda: not kept.processes.started[1]._process.is_alive())
        result = found.who()
        wait_until(lambda: second.session.messenger.peers.lost)
    finally:
        news.set_result(None)
    assert [who[2] for who in result.wait(60)] == [0, 1]


def next_of(heard, kinds):
    while not isinstance(event := heard.get(timeout=60), kinds):
        pass
    return event


@pytest.mark.parametrize("on_failure", ["fail", "ignore"])
def test_a_death_ends_what_the_group_was_launched_to_end_for_every_driver(kept, driver, on_failure):
    group = launch(driver, "mortal", on_failure=on_failure)
    second = kept.attach("driver@there.2")
    found = attach(second.session, "mortal", None)
    held = found.execute_on(0).hold_on()
    with pytest.raises(WorkerDied):
        group.execute_on(1).die().wait(60)
    wait_until(lambda: found.health()[1].state == "dead")
    with pytest.raises(WorkerDied, match=r"rank 1 of 'mortal'"):
        found.execute_on(1).who()
    if on_failure == "ignore":
        assert not held.done()
        group.execute_on(0).let_go().wait(60)
        assert held.wait(60) == ["held on"]
    else:
        with pytest.raises(WorkerDied, match="rank 1 of 'mortal'"):
            held.wait(60)


def test_a_driver_hears_what_its_groups_print_and_no_other(kept, driver):
    second = kept.attach("driver@there.2")
    heard, others = queue.SimpleQueue(), queue.SimpleQueue()
    driver.session.bus.subscribe(heard.put)
    second.session.bus.subscribe(others.put)
    group = launch(driver, "speaks", placement=ONE)
    group.say("hello").wait(60)
    assert next_of(heard, WorkerLogged).message == "hello"
    launch(driver, "later", placement=ONE)
    told = [next_of(others, (GroupLaunched, WorkerLogged)) for _ in range(2)]
    assert [each.group for each in told if isinstance(each, GroupLaunched)] == ["speaks", "later"]


def test_what_cannot_be_launched_says_why_and_its_name_is_free(kept, driver):
    with pytest.raises(LaunchError, match="no model there"):
        Failing.create_group().launch(driver, ONE, name="failing")
    launch(driver, "failing", placement=ONE)
    with pytest.raises(GroupExists, match="failing"):
        launch(driver, "failing", placement=ONE)
    with pytest.raises(ConfigError, match="on_failure is a function of this program"):
        launch(driver, "asks", on_failure=lambda lost: "fail")
    with pytest.raises(PlacementError):
        launch(driver, "too large", placement=PackedPlacementStrategy(0, 99))


def test_a_launch_of_a_driver_that_leaves_is_given_up(kept, driver):
    launch(driver, "first", placement=ONE)  # so that nothing else is loaded meanwhile
    errors = []
    thread = threading.Thread(target=slow, args=(driver, errors))
    thread.start()
    wait_until(lambda: kept.living == 2)
    with pytest.raises(ClusterError, match="group 'stuck' is being launched"):
        attach(driver.session, "stuck", None)
    driver.session.close()
    thread.join(60)
    assert isinstance(errors[0], (CommError, LaunchError))
    wait_until(lambda: kept.living == 0)
    assert names(kept) == set()


def test_a_launch_that_is_given_up_as_it_is_done_leaves_no_group(kept, driver, monkeypatch):
    asked, busy = queue.SimpleQueue(), Promise()
    noted(monkeypatch, asked)
    errors = []
    thread = threading.Thread(target=slow, args=(driver, errors), kwargs={"worker_class": Steady})
    kept.processes.on_start = partial(stand, driver, busy)  # the answer is not read
    thread.start()
    wait_until(lambda: names(kept) == {"stuck"})
    kept.processes.on_start = lambda: None
    asked.get(timeout=60).give_up()
    busy.set_result(None)
    thread.join(60)
    assert isinstance(errors[0], CancelledError)
    wait_until(lambda: names(kept) == set() and "stuck" not in driver.session.directory.group_sizes())
    launch(driver, "stuck", placement=ONE)


def stand(job, busy):
    """Return once the I/O thread of a process stands still, until `busy` is done."""
    stands = threading.Event()
    job.session.messenger.submit(lambda: (stands.set(), busy.wait(60)))
    assert stands.wait(60)


class OfTheDriverOnly(PackedPlacementStrategy):
    """Places by records that the job server cannot read."""

    def get_placement(self, cluster, isolate_gpu=True):
        return [Unreadable() for _ in super().get_placement(cluster, isolate_gpu)]


class Unreadable:
    def __reduce__(self):
        return cannot_be_imported, ()


def cannot_be_imported():
    raise ModuleNotFoundError("no module of the driver's")


def test_the_name_of_an_order_that_the_job_server_cannot_read_is_free(kept, driver):
    for _ in range(50):  # it is free before the driver hears of it
        with pytest.raises(ModuleNotFoundError, match="no module of the driver's"):
            launch(driver, "unread", placement=OfTheDriverOnly(0, 0))
    assert launch(driver, "unread", placement=ONE).who().wait(60)


def test_a_launch_is_not_disturbed_by_one_whose_name_is_anothers(kept, driver):
    errors, second = [], kept.attach("driver@there.2")
    thread = threading.Thread(target=slow, args=(driver, errors))
    thread.start()
    wait_until(lambda: kept.living == 1)
    head = LaunchGroup("stuck", False, 0)
    with pytest.raises(ClusterError, match="by a process that has not taken its name"):
        second.session.messenger.request(second.session.home, LAUNCH, head, [b""]).result(60)
    with pytest.raises(ClusterError, match="group 'stuck' is being launched"):
        attach(second.session, "stuck", None)
    driver.session.close()
    thread.join(60)
    wait_until(lambda: kept.living == 0)


def test_a_launch_that_was_given_up_does_not_take_the_name_of_the_next_one(kept, driver, monkeypatch):
    asked, late, launch_it = queue.SimpleQueue(), queue.SimpleQueue(), GroupServer._launch
    noted(monkeypatch, asked)
    with monkeypatch.context() as patch:
        patch.setattr(GroupServer, "_launch", lambda *what: late.put(what))  # its thread is slow to begin
        errors = []
        thread = threading.Thread(target=slow, args=(driver, errors))
        thread.start()
        first = late.get(timeout=60)
    asked.get(timeout=60).give_up()
    thread.join(60)
    with pytest.raises(GroupExists):  # the job server has it until its launch has ended
        launch(driver, "stuck", placement=ONE)
    launch_it(*first)
    wait_until(lambda: not driver.session.directory.list(GROUPS))
    launch(driver, "stuck", placement=ONE)


def noted(monkeypatch, asked):
    """Have every question for a group put into `asked`."""

    class Noted(remote_home._RecordAsked):
        def __init__(self, *args):
            super().__init__(*args)
            asked.put(self)

    monkeypatch.setattr(remote_home, "_RecordAsked", Noted)


def slow(driver, errors, worker_class=Stuck):
    try:
        worker_class.create_group().launch(driver, ONE, name="stuck", detached=True)
    except Exception as error:  # noqa: BLE001 - looked at by the test
        errors.append(error)


def test_who_ends_a_group_does_not_wait_for_ever_for_a_job_server_that_is_stuck(kept, driver, monkeypatch):
    group = launch(driver, "policy", placement=ONE)
    monkeypatch.setattr(remote_group, "END_WITHIN_S", 0.1)
    busy = Promise()
    stand(kept, busy)
    try:
        for end in (group.terminate, lambda: group.shutdown(timeout_s=0.0)):
            with pytest.raises(CommTimeout, match="waiting for its answer"):
                end()
    finally:
        busy.set_result(None)
    wait_until(lambda: names(kept) == set())


def test_a_worker_of_such_a_job_launches_by_the_job_server_and_its_groups_end_with_it(kept, driver):
    outer = Outer.create_group().launch(driver, ONE, name="outer", detached=True)
    assert outer.launch_inner().wait(60) == [("outer:0/inner", 5)]
    assert names(kept) == {"outer", "outer:0/inner"}
    outer.terminate()
    wait_until(lambda: names(kept) == set())


def test_channels_belong_to_the_job(kept, driver):
    set_current(driver.session)
    Channel.create("items").put("an item")
    driver.session.close()
    second = kept.attach("driver@there.2")
    set_current(second.session)
    assert Channel.connect("items").get(timeout_s=60) == "an item"


def test_a_driver_knows_the_nodes(kept, driver):
    assert nodes_of(driver.session).lost == {}
    assert len(nodes_of(driver.session, refresh_s=5).fleet.nodes) == 2


def test_a_driver_sees_what_the_job_does(kept, driver):
    launch(driver, "policy", placement=ONE)
    status = received(begin_status(driver.session))
    assert {"policy", "driver@here.1"} <= {group.name for group in status.groups}


def slices(path):
    with gzip.open(path, "rt") as file:
        return [event["name"] for event in json.load(file)["traceEvents"] if event["ph"] == "X"]


def test_a_driver_has_the_job_traced_by_its_job_server(kept, driver, tmp_path, monkeypatch):
    monkeypatch.setattr(detached, "PART_BYTES", 1000)  # it comes in several parts
    group, other = launch(driver, "policy", placement=ONE, detached=True), kept.attach("driver@there.2")
    with trace(driver.session, tmp_path / "run.json.gz", MIB) as traced:
        group.who().wait(60)
        with pytest.raises(
            ConfigError, match=r"by 'driver@here\.1' to .*run\.json\.gz: that trace is to be stopped"
        ):
            trace(other.session, tmp_path / "other.json", MIB)
    assert slices(tmp_path / "run.json.gz").count("who") == 1
    assert (tmp_path / "run.json.gz").stat().st_mode & 0o777 == 0o600
    assert traced.file.num_processes == 4  # of drivers, the job server, and the rank
    assert traced.file.missing == {}
    assert traced.stop() is traced.file
    with pytest.raises(ConfigError, match="a trace needs a megabyte"):
        trace(driver.session, tmp_path / "run.json.gz", 1)


def test_a_driver_that_was_interrupted_when_it_began_a_trace_begins_another(
    kept, driver, tmp_path, monkeypatch
):
    group, ask = launch(driver, "policy", placement=ONE, detached=True), DetachedTraces._ask

    def interrupted(*about):
        ask(*about)
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(DetachedTraces, "_ask", interrupted)
        with pytest.raises(Interrupted):
            trace(driver.session, tmp_path / "lost.json", MIB)
    with trace(driver.session, tmp_path / "run.json.gz", MIB):
        with pytest.raises(ConfigError, match=r"traces the job already, to .*run\.json\.gz"):
            trace(driver.session, tmp_path / "other.json", MIB)
        group.who().wait(60)
    assert slices(tmp_path / "run.json.gz").count("who") == 1


def test_a_trace_ends_with_the_driver_that_began_it_whether_it_leaves_or_is_lost(kept, driver, tmp_path):
    group = launch(driver, "policy", placement=ONE, detached=True)
    traced = trace(driver.session, tmp_path / "run.json.gz", MIB)
    group.who().wait(60)
    driver.session.close()
    assert traced.file is not None
    assert "who" in slices(tmp_path / "run.json.gz")
    second, third = kept.attach("driver@there.2"), kept.attach("driver@there.3")
    trace(second.session, tmp_path / "lost.json", MIB)
    made, service = kept.session.service(TraceMaker)._made, kept.session.service(TraceService)
    (lost,) = made.values()
    second.session.messenger.close()
    wait_until(lambda: not made and service._tracing is None)
    following = trace(third.session, tmp_path / "next.json.gz", MIB)
    (next_one,) = made.values()
    following.stop()
    folders = [each.trace.path.parent for each in (lost, next_one)]
    wait_until(lambda: not any(folder.exists() for folder in folders))


def test_a_trace_has_begun_in_every_rank_before_its_driver_calls_one(kept, driver, tmp_path, monkeypatch):
    monkeypatch.setattr(detached, "TOLD_S", 60.0)
    group = launch(driver, "policy", placement=ONE, detached=True)
    (pid,) = (who[-1] for who in group.who().wait(60))
    with ThreadPoolExecutor() as beside:
        os.kill(pid, signal.SIGSTOP)
        try:
            begun = beside.submit(trace, driver.session, tmp_path / "run.json.gz", MIB)
            wait_until(lambda: (tmp_path / "run.json.gz").exists())
            assert wait([begun], timeout=0.2).done == set()
        finally:
            os.kill(pid, signal.SIGCONT)
        with begun.result(60):
            group.who().wait(60)
    assert slices(tmp_path / "run.json.gz").count("who") == 1


def test_a_driver_whose_environment_says_so_has_the_job_traced_while_it_takes_part(
    kept, driver, tmp_path, monkeypatch
):
    group = launch(driver, "policy", placement=ONE, detached=True)
    monkeypatch.setenv("RLINF_TRACE", str(tmp_path / "run.json.gz"))
    with wanted_trace_file() as file:
        begin_wanted_trace(driver.session, file)
    group.who().wait(60)
    refusal = r"RLINF_TRACE=.*run\.json\.gz: .*traced already, by 'driver@here\.1' .*leave RLINF_TRACE away"
    with wanted_trace_file() as file, pytest.raises(ConfigError, match=refusal):
        begin_wanted_trace(kept.attach("driver@there.2").session, file)
    driver.session.close()
    assert slices(tmp_path / "run.json.gz").count("who") == 1


def losses(driver):
    """Why a driver has lost its job, each time that it is told, once its bus has delivered all."""
    heard = []
    driver.session.bus.subscribe(lambda event: heard.append(event) if isinstance(event, JobLost) else None)
    delivered = Promise()
    driver.session.on_close_last(lambda: delivered.set_result(heard))
    return delivered


def test_without_its_job_server_a_driver_leaves_and_says_why(kept, driver):
    group, lost = launch(driver, "policy", placement=ONE), losses(driver)
    held = group.hold_on()
    kept.session.messenger.close()
    # As a busy thread finds it: its call was ended with the job, or all that this process waited for was.
    with pytest.raises((WorkerDied, CommError), match="job 'forked' has ended: its job server is gone"):
        held.wait(60)
    (told,) = lost.result(60)
    assert told.reason == driver.session.failure
    assert told.reason.startswith("job 'forked' has ended: its job server is gone: ")
    with pytest.raises((WorkerDied, CommError), match="job 'forked' has ended"):
        group.who()


def test_a_job_server_that_has_to_leave_says_why_before_anything_ends(kept, driver):
    group = launch(driver, "policy", placement=ONE, detached=True)
    held, lost = group.hold_on(), losses(driver)
    kept.session.leave("Ray's head is gone")
    # The rank's end, or that of the job: whichever its driver hears of first.
    with pytest.raises((WorkerDied, CommError), match="job 'forked' has ended: Ray's head is gone"):
        held.wait(60)
    assert lost.result(60) == [JobLost("job 'forked' has ended: Ray's head is gone")]
    with pytest.raises((WorkerDied, CommError), match="job 'forked' has ended: Ray's head is gone"):
        group.who()


def test_a_job_is_stopped_by_one_driver_for_all(kept, driver, tmp_path, monkeypatch, caplog):
    def full(_path):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr("rlinf_scheduler.detached.wait_for_job_server_end", lambda name, timeout_s: True)
    launch(driver, "stays", detached=True)
    second = kept.attach("driver@there.2")
    trace(second.session, tmp_path / "run.json", MIB)
    monkeypatch.setattr(detached, "opened_file", full)
    own, others = losses(second), losses(driver)
    end_job(second.session)
    assert "its trace could not be written" in caplog.text
    assert kept.living == 0
    assert own.result(60) == []  # who ends it has not lost it
    assert ["the job was stopped by " in told.reason for told in others.result(60)] == [True]
    wait_until(lambda: kept.session.closed)


def test_a_driver_that_is_stopped_is_told_what_it_missed_of_lines_and_of_everything_else(kept, monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.worker.home_server.MAX_UNTAKEN_BYTES", 100_000)
    driver = kept.attach("driver@there.2")
    launch(driver, "policy")
    told, goes_on, stands = ([], []), threading.Event(), threading.Event()
    for bus, of_bus in zip((driver.session.bus, driver.session.log_bus), told, strict=True):
        bus.subscribe(of_bus.append)
    driver.session.messenger.submit(lambda: (stands.set(), goes_on.wait(60)))
    assert stands.wait(60)
    for number in range(1000):
        kept.session.bus.emit(WorkerPrinted("policy", 0, (f"line {number} " + "x" * 1000,)))
    kept.session.bus.emit(WorkerLost("policy", 1, "killed"))
    assert kept.session.bus.flush(60)
    goes_on.set()
    for of_bus in told:  # each in a thread of its own; what comes as the first are read may be shown again
        lines = seen(partial(printed, of_bus), lambda lines: num_shown(lines) + num_left_out(lines) == 1000)
        assert num_shown(lines) > 10
        assert num_left_out(lines) > 0
    wait_until(lambda: any(WorkerLost("policy", 1, "killed") in of_bus for of_bus in told))


def num_shown(lines):
    return sum(line.startswith("line ") for line in lines)


def num_left_out(lines):
    told = (LEFT_OUT.fullmatch(line) for line in lines)
    return sum(int(found[1].replace(",", "")) for found in told if found)


def printed(told):
    return [line for each in told if isinstance(each, WorkerPrinted) for line in each.lines]


def test_a_config_that_simulates_has_no_job_that_outlives_its_driver():
    with pytest.raises(ConfigError, match="simulated nodes end with this program"):
        Cluster({"cluster": {"num_nodes": 2, "simulate": "2x4"}}, job="serving", detached=True)


def test_a_group_can_be_detached_only_where_the_job_outlives_its_driver(forked_job):
    with pytest.raises(ConfigError, match="this job ends with its driver"):
        launch(forked_job, "stays", detached=True)
    with pytest.raises(ClusterError, match="'driver' is no driver of a job that outlives its drivers"):
        end_job(forked_job.session)


def test_a_driver_lets_a_group_grow_and_shrink_and_another_one_follows(kept, driver):
    group = launch(driver, "resized", 7, detached=True)
    other = attach(kept.attach("driver@there.2").session, "resized", None)
    assert group.grow(2) == (2, 3)
    wait_until(lambda: other.ranks == (0, 1, 2, 3))
    assert [who[0] for who in other.who().wait(60)] == [0, 1, 2, 3]
    assert other.shrink(ranks=[1]) == (1,)
    wait_until(lambda: group.ranks == (0, 2, 3))
    assert [who[0] for who in group.who().wait(60)] == [0, 2, 3]
    third = attach(kept.attach("driver@there.3").session, "resized", None)
    assert (third.ranks, third.members.epoch) == ((0, 2, 3), 2)
    with pytest.raises(PlacementError, match="has no rank 1 to let go"):
        group.shrink(ranks=[1])
    with pytest.raises(PlacementError, match=r"has ranks 0, 2, 3, not 1"):
        group.execute_on(1)
    third.terminate()
    wait_until(lambda: kept.living == 0)
    with pytest.raises((WorkerDied, LaunchError)):
        group.grow(1)


def test_a_driver_hears_why_a_rank_was_ended_by_force_though_nobody_tells_of_its_end(
    kept, driver, monkeypatch
):
    monkeypatch.setattr(supervision, "STOP_GRACE_S", 0.0)
    kept.processes.watches = False
    group = launch(driver, "untold")
    holds = group[1].hold_on()
    assert group.shrink(ranks=[1], drain_s=0.2) == (1,)
    told = r"died during hold_on\(\): it left at .*; shrink\(ranks=\[1\]\) ended it after 0\.2 s"
    with pytest.raises(WorkerDied, match=told):
        holds.wait(60)
