"""Processes that ranks start, as workers below them: real processes, without Ray."""

import io
import json
import multiprocessing
import os
import queue
import select
import signal
import threading
from itertools import count

import numpy as np
import pytest
from data_loading_workers import Loading
from rich.console import Console

from interruptions import SEED, Alarms
from joined_workers import DEADLINE_S, Nest
from rlinf.scheduler import Channel, PackedPlacementStrategy, Worker
from rlinf_scheduler.cli.top_view import job_view
from rlinf_scheduler.errors import WorkerError
from rlinf_scheduler.events import ChildJoined, ChildLeft, ChildLost, WorkerLost
from rlinf_scheduler.observe.status_service import begin_status, received
from rlinf_scheduler.observe.why import why
from rlinf_scheduler.tracing.service import TraceService
from waits import wait_until

CHILD_EVENTS = (ChildJoined, ChildLeft, ChildLost)


@pytest.fixture
def launch(forked_job):
    def launch(name="nest", last=1, kind=Nest, **options):
        return kind.create_group().launch(forked_job, PackedPlacementStrategy(0, last), name=name, **options)

    return launch


def of(result):
    return result.wait(DEADLINE_S)


def one(result):
    (value,) = of(result)
    return value


def ended(pid):
    """Whether a process of that number ends within the deadline."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], DEADLINE_S)[0])
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("way", ["spawn", "forkserver", "subprocess", "scrubbed"])
def test_a_process_that_a_rank_starts_joins_below_it_however_it_is_started(launch, way):
    group = launch(last=0)
    address, pid = one(group.open(way))
    assert address == "nest:0/0"
    who = one(group.ask(0, "who"))
    assert who["address"] == who["again"] == address
    assert (who["rank"], who["world_size"], who["group"]) == (0, 0, "nest")
    assert not who["has_ray"] or way == "forkserver"  # which has what tests load
    assert one(group.ask(0, "title")).startswith("nest:0/0")
    os.kill(one(group.pid()), 9)
    assert ended(pid)


def test_parents_children_other_ranks_and_their_children_send_to_each_other(launch):
    group = launch()
    of(group.open("fork"))
    other = launch("other", 0)
    of(other.open("fork", 2, 2))
    # From a child to another rank, to a child of another rank, and to one of another group.
    one(group.execute_on(0).ask(0, "send", "to a rank", "other", 0))
    assert of(other.recv_from("nest", "0/0")) == ["to a rank"]
    one(group.execute_on(0).ask(0, "send", np.arange(1 << 17), "nest", "1/0"))
    assert one(group.execute_on(1).ask(0, "recv", "nest", [0, 0])).sum() == sum(range(1 << 17))
    one(group.execute_on(1).ask(0, "send", "to a child", "other", (0, 2)))
    assert one(other.ask(2, "recv", "nest", "1/0")) == "to a child"
    # From a rank to the child of another.
    one(other.send_to("down", "nest", "1/0"))
    assert one(group.execute_on(1).ask(0, "recv", "other", 0)) == "down"


def test_ranks_and_children_take_part_in_a_broadcast(launch):
    group = launch()
    of(group.open("fork"))
    members, source = [("nest", [1, "0/0", (1, 0)])], ("nest", [0, 0])
    asked = group.execute_on(0).ask(0, "broadcast", "to all", members, source)
    assert one(group.execute_on(1).take_part(members, source)) == "to all"
    assert one(group.execute_on(1).ask(0, "broadcast", None, members, source)) == "to all"
    assert one(asked) == "to all"
    error = one(group.execute_on(0).ask(0, "broadcast", None, [("nest", [0, "1/x"])], None))
    assert "a rank of 'nest' in a broadcast is a whole number from 0, not '1/x'" in str(error)


def test_children_have_channels_weights_timers_locks_and_log_lines(launch, forked_job):
    lines = []
    forked_job.session.bus.subscribe(lambda event: lines.append(event))
    group = launch(last=0)
    of(group.open("fork"))
    channel = Channel.create("items")
    one(group.ask(0, "put", "items", [1, 2]))
    assert [channel.get(timeout_s=DEADLINE_S) for _ in range(2)] == [1, 2]
    one(group.ask(0, "create", "of a child"))
    Channel.connect("of a child").put("up")
    assert one(group.ask(0, "get", "of a child")) == "up"
    one(group.ask(0, "publish", "policy", 2.0))
    assert one(group.ask(0, "fetch", "policy")) == (1, 2.0 * (1 << 16))
    one(group.ask(0, "log", "hello of a child"))
    wait_until(lambda: any("hello of a child" in str(event) for event in lines))


def test_children_have_workers_below_them(launch):
    group = launch(last=0)
    of(group.open("fork"))
    assert one(group.ask(0, "open_below", "fork"))[0] == "nest:0/0/0"
    assert one(group.ask(0, "ask_below", "who"))["address"] == "nest:0/0/0"
    one(group.ask(0, "ask_below", "send", "from far below", "nest", 0))
    assert of(group.recv_from("nest", "0/0/0")) == ["from far below"]


def test_what_a_fork_server_of_a_rank_starts_for_its_child_is_below_the_child(launch):
    group = launch(last=0)
    _, child = one(group.open("forkserver"))
    assert one(group.ask(0, "open_below", "forkserver"))[0] == "nest:0/0/0"
    below = one(group.ask(0, "ask_below", "pid"))
    os.kill(child, 9)
    assert ended(below)
    # The server outlives it, and starts the next ones below their own parents.
    assert one(group.open("forkserver"))[0] == "nest:0/0"


def test_workers_of_a_data_loader_join(launch):
    assert one(launch(last=0, kind=Loading).load()) == ["nest:0/0", "nest:0/1"]


def test_the_driver_hears_of_children_and_a_rank_of_those_that_died(launch, forked_job):
    events = queue.SimpleQueue()
    forked_job.session.bus.subscribe(
        lambda event: events.put(event) if isinstance(event, CHILD_EVENTS) else None
    )
    group = launch(last=0)
    _, first = one(group.open("fork"))
    _, second = one(group.open("fork", 1))
    assert [events.get(timeout=DEADLINE_S) for _ in range(2)] == [
        ChildJoined("nest:0/0", first, 0),
        ChildJoined("nest:0/1", second, 0),
    ]
    assert one(group.end(1)) == 0
    assert events.get(timeout=DEADLINE_S) == ChildLeft("nest:0/1")
    os.kill(first, 9)
    told = events.get(timeout=DEADLINE_S)
    assert (type(told), told.address) == (ChildLost, "nest:0/0")
    assert "its process has ended" in told.reason
    assert one(group.next_lost()).address == "nest:0/0"
    # What goes with its rank is not told of beside that.
    one(group.open("fork"))
    group.shutdown()
    launch(last=0).open("fork").wait(DEADLINE_S)
    assert [type(events.get(timeout=DEADLINE_S)) for _ in range(2)] == [ChildJoined, ChildJoined]


def test_several_that_join_at_once_have_numbers_of_their_own(launch):
    group = launch(last=0)
    met = one(group.threads_open("fork", 4))
    assert [address for address, _ in met] == [f"nest:0/{number}" for number in range(4)]
    assert len({pid for _, pid in met}) == 4
    # One that has ended leaves its number to the next.
    assert one(group.end(2)) == 0
    assert one(group.open("fork", 2))[0] == "nest:0/2"


def test_a_number_that_a_process_has_is_no_other_ones(launch):
    group = launch(last=0)
    _, pid = one(group.open("fork", None, 1))
    told = one(group.error_of("fork", Worker.join_parent, 1))
    assert told == (
        f"ClusterError: 'nest:0/1' is process {pid} already: each worker below 'nest:0' has a number of its own"
    )
    assert one(group.ask(1, "who"))["rank"] == 1


def test_a_process_joins_by_the_arguments_of_rlinfs_programs(launch):
    group = launch()
    assert [address for address, _ in of(group.open_rlinf("fork", 1, 2))] == ["nest:0/1", "nest:1/1"]
    who = one(group.execute_on(1).ask(1, "who"))
    assert (who["rank"], who["world_size"]) == (1, 2)


def test_a_child_that_is_killed_ends_what_waits_for_it_and_leaves_its_rank_alone(launch):
    group = launch()
    of(group.open("fork"))
    waiting = group.execute_on(1).recv_from("nest", "0/0", timeout_s=None)
    channel = Channel.create("items")
    channel.put("leased")
    assert one(group.execute_on(0).ask(0, "lease", "items")) == "leased"
    one(group.execute_on(0).kill(0))
    with pytest.raises(WorkerError, match=r"PeerDied: peer 'nest:0/0' is gone"):
        one(waiting)
    # Its lease ends with it, whatever the time limit is.
    assert channel.get(timeout_s=DEADLINE_S) == "leased"
    assert of(group.pid())


def test_another_process_takes_the_place_of_a_child_at_once_and_is_told_of_after_it(launch, forked_job):
    events = queue.SimpleQueue()
    forked_job.session.bus.subscribe(
        lambda event: events.put(type(event)) if isinstance(event, CHILD_EVENTS) else None
    )
    group = launch(last=0)
    _, before = one(group.open("fork"))
    for _ in range(3):
        address, now = one(group.kill_and_open("fork", 0))
        assert (address, now != before) == ("nest:0/0", True)
        before = now
    told = [events.get(timeout=DEADLINE_S) for _ in range(7)]
    assert told == [ChildJoined, *[ChildLost, ChildJoined] * 3]


def test_children_end_with_a_rank_that_is_killed(launch):
    group = launch(last=0)
    other = launch("other", 0)
    _, child = one(group.open("fork"))
    one(group.ask(0, "wait_in_thread", "other", 0))
    _, below = one(group.ask(0, "open_below", "fork"))
    waiting = other.recv_from("nest", "0/0", timeout_s=None)
    late = other.recv_from("nest", "0/7", timeout_s=None)
    os.kill(one(group.pid()), 9)
    assert ended(child)
    assert ended(below)
    for result, name in (waiting, "nest:0/0"), (late, "nest:0/7"):
        with pytest.raises(WorkerError, match=f"PeerDied: peer '{name}' is gone: "):
            one(result)


def test_children_end_with_their_group_and_its_next_ranks_have_children_again(launch):
    group = launch(last=0)
    _, child = one(group.open("fork"))
    group.shutdown()
    assert ended(child)
    group = launch(last=0)
    assert one(group.open("fork"))[0] == "nest:0/0"
    assert one(group.ask(0, "who"))["address"] == "nest:0/0"


def test_a_rank_that_comes_back_has_children_again(launch, forked_job):
    events = []
    forked_job.session.bus.subscribe(events.append)
    group = launch(last=0, on_failure="restart")
    other = launch("other", 0)
    _, child = one(group.open("fork"))
    waiting = other.recv_from("nest", "0/0", timeout_s=None, wait_for_return=True)
    os.kill(one(group.pid()), 9)
    assert ended(child)
    # From now on calls wait for the one that comes.
    wait_until(lambda: any(isinstance(event, WorkerLost) for event in events))
    address, again = one(group.open("fork"))
    assert (address, again != child) == ("nest:0/0", True)
    one(group.ask(0, "send", "back", "other", 0))
    assert one(waiting) == "back"


def test_what_joined_is_seen_under_its_address(launch, forked_job):
    group = launch(last=0)
    _, pid = one(group.open("fork"))
    assert one(group.ask(0, "title")).startswith("nest:0/0")
    status = received(begin_status(forked_job.session))
    found = {rank.address: rank for each in status.groups for rank in each.ranks}
    assert [name for name in found if name.startswith("nest")] == ["nest:0", "nest:0/0"]
    assert (found["nest:0/0"].pid, found["nest:0/0"].node_rank, found["nest:0/0"].rank) == (pid, 0, 0)
    one(group.ask(0, "wait_in_thread", "nest", "0/9"))
    wait_until(lambda: "nest:0/9" in str(why(forked_job.session)))


def test_what_joined_has_a_row_in_top_and_spans_in_a_trace(launch, forked_job, tmp_path):
    group = launch(last=0)
    of(group.open("fork"))
    console = Console(width=120, file=io.StringIO())
    console.print(job_view(received(begin_status(forked_job.session)), 120, 40))
    assert "nest:0/0" in console.file.getvalue()
    with forked_job.session.service(TraceService).begin(tmp_path / "run.json", 1 << 20) as trace:
        Channel.create("items")
        one(group.ask(0, "put", "items", [1]))
        one(group.ask(0, "log", "hello of a child"))  # with a timer
    assert trace.file.missing == {}
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    (number,) = (
        event["pid"]
        for event in events
        if event["name"] == "process_name" and "nest:0/0" in str(event["args"])
    )
    spans = {
        (event["cat"], event["name"]) for event in events if event["ph"] == "X" and event["pid"] == number
    }
    assert ("phase", "part") in spans
    assert "put" in {category for category, _ in spans}


def test_a_rank_that_is_stopped_and_goes_on_has_its_children(launch):
    group = launch(last=0)
    other = launch("other", 0)
    _, child = one(group.open("fork"))
    one(group.ask(0, "wait_in_thread", "other", 0))
    pid = one(group.pid())
    os.kill(pid, signal.SIGSTOP)
    try:
        # The child is there for others meanwhile.
        of(other.send_to("hello", "nest", "0/0"))
        late = group.pid()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert one(late) == pid
    assert one(group.ask(0, "pid")) == child


def test_only_what_a_rank_starts_can_join_and_only_there(launch, monkeypatch):
    group = launch(last=0)
    assert one(group.own_error()).startswith("this process is 'nest:0' of its job")
    assert "rank=2 of world_size=2" in one(group.own_error(2, 2))
    told = one(group.error_of("fork", join_at_wrong_address))
    assert told.startswith("ClusterError: this process was started by 'nest:0', not by 'nest:1'")
    assert "RLINF_PARENT" in one(group.error_of("fork", join_in_place_of, "nobody"))
    gone = one(group.error_of("fork", join_in_place_of, "4194304 7 8 nest:0"))
    assert gone.startswith("ClusterError: 'nest:0', which started this process, is gone, or cannot be seen")
    other = one(group.error_of("fork", join_below_another, "other:0"))
    assert other.startswith("ClusterError: /proc/")
    assert other.endswith(" is that of 'nest:0', not of 'other:0': 'other:0' has left the job")
    assert one(group.error_of("fork", Worker)) == "no error"


def join_at_wrong_address():
    Worker(parent_address=Worker().address.__class__("nest", 1), world_size=1, rank=0)


def join_below_another(address):
    """The parent's process has left the job, say, and has the file of another worker under that descriptor."""
    *where, _ = os.environ["RLINF_PARENT"].split(" ", 3)
    join_in_place_of(" ".join([*where, address]))


def join_in_place_of(parent):
    os.environ["RLINF_PARENT"] = parent
    multiprocessing.current_process()._config.clear()
    Worker.join_parent()


def test_a_join_that_takes_too_long_says_what_it_waits_for_and_leaves_the_number_free(launch):
    group = launch(last=0)
    told = one(group.error_of("fork", join_without_time))
    assert (
        told == "ClusterTimeout: 'nest:0/0' has not joined the job in time: its home does not take its name"
    )
    assert one(group.open("fork"))[0] == "nest:0/0"


def join_without_time():
    Worker.join_parent(timeout_s=0.0)


def test_a_join_that_is_interrupted_is_done_once(launch):
    group = launch(last=0)
    assert one(group.error_of("fork", join_interrupted)) == "no error"


def join_interrupted():
    seeds, longest_s = count(SEED), 0.05
    while not Alarms(next(seeds), longest_s=longest_s).attempt(Worker.join_parent):
        longest_s *= 1.1  # on a busy machine it takes longer, and is to come to its end
    assert str(Worker().address) == "nest:0/0"
    # Nobody is left that an interrupted one has made.
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("comm-")] == [
        "comm-nest:0/0"
    ]
