"""Who waits for whom, and who is to blame: decided from data."""

import json

import pytest

from rlinf_scheduler.comm.waits import (
    CHANNEL,
    COLLECTIVE,
    DEVICE,
    LAUNCH,
    MESSAGE,
    NAME,
    RESULT,
    WEIGHTS,
    Wait,
)
from rlinf_scheduler.errors import ClusterError, PeerDied
from rlinf_scheduler.observe.culprits import state_text
from rlinf_scheduler.observe.process_stats import (
    Activity,
    Frame,
    GoneProcess,
    JobActivity,
    LinkNote,
    RunningCall,
    Silent,
    Stack,
    TurnNote,
)
from rlinf_scheduler.observe.why import why_of, why_of_several
from rlinf_scheduler.queueing.stats import ChannelStats, QueueDepth, QueueStats, QueueUser, Waiting

REWARD = (Frame("/home/me/reward.py", 31, "score", "time.sleep"), Frame("/home/me/main.py", 9, "generate"))


def waits(name, *found, frames=REWARD, **more):
    calls = None if name == "driver" else (RunningCall("step", 50.0, "driver"),)
    return Activity(
        name, 1, "node0", calls, tuple(Stack("MainThread", frames, wait) for wait in found), **more
    )


def works(name, since_s=40.0, same_for_s=40.0, still_for_s=None, **more):
    still_for_s = same_for_s if still_for_s is None else still_for_s
    stacks = (Stack("MainThread", REWARD, None, same_for_s, still_for_s),)
    return Activity(name, 1, "node0", (RunningCall("generate", since_s, "driver"),), stacks, **more)


def idle(name, **more):
    return Activity(name, 1, "node0", (), (), **more)


def recv(peer, since_s=10.0):
    return Wait(MESSAGE, f"recv('{peer}')", since_s, None, (peer,))


def result(*peers, since_s=41.0):
    return Wait(RESULT, "actor.train()", since_s, None, peers)


def get(queue="'default'", since_s=41.0, needs=0, kind="get", counts_items=False):
    about = f"{kind}('rollouts')", since_s, None, ("Channels:0",), "rollouts", queue, needs, kind
    return Wait(CHANNEL, *about, counts_items)


def put(since_s=30.0):
    return get(since_s=since_s, kind="put")


def queue_of(name, num_items=0, weight=0, **more):
    return QueueStats(QueueDepth(name, num_items, weight), **more)


def channel_of(*queues, held_by="Channels:0", **more):
    return ChannelStats(name="rollouts", held_by=held_by, shown=queues, **more)


USERS = tuple(QueueUser(f"rollout:{rank}", 9, 0.1) for rank in range(2))
MOVING = {"channels": (channel_of(queue_of("default", putters=USERS), held_by=""),)}
SLOW = waits("actor:0", get(since_s=0.4), **MOVING), works("rollout:0", 0.4, 0.0), idle("rollout:1")
BETWEEN_STEPS = works("actor:0", 0.1, 0.0, **MOVING), works("rollout:0", 0.4, 0.0), idle("rollout:1")
OTHERWISE = waits("actor:0", get(since_s=0.01), **MOVING), idle("rollout:0"), works("rollout:1", 0.01, 0.0)


def asked(*moments, within_s=60.0):
    """What is said of a job that is looked at in these moments, and in how many of them it was."""
    left = [JobActivity(moment) for moment in moments]
    found = why_of_several(lambda: left.pop(0), within_s)
    return found, len(moments) - len(left)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("other", [BETWEEN_STEPS, OTHERWISE])
def test_who_was_found_most_often_is_named(place, other):
    moments = [SLOW, SLOW]
    moments.insert(place, other)
    found, num_looks = asked(*moments)
    assert num_looks == 3
    assert found.culprit.address == "rollout:0"
    assert "rollout:0 runs generate()" in found.headline


def test_where_nobody_waits_in_most_looks_nobody_is_named():
    assert asked(BETWEEN_STEPS, OTHERWISE, BETWEEN_STEPS)[0].culprit is None


def test_what_cannot_change_is_named_after_one_look():
    stuck = waits("actor:0", recv("rollout:0")), waits("rollout:0", recv("actor:0"))
    found, num_looks = asked(stuck, stuck, stuck)
    assert (num_looks, found.culprit.cycle) == (1, ("actor:0", "rollout:0"))


def test_no_look_begins_that_would_be_too_late():
    assert asked(SLOW, SLOW, within_s=0.0)[1] == 1


@pytest.mark.parametrize("error", [ClusterError("it does not answer"), PeerDied("driver", "it is gone")])
def test_a_job_that_ends_between_two_looks_is_told_of_as_it_was(error):
    looks = iter([JobActivity(SLOW)])

    def look():
        found = next(looks, None)
        if found is None:
            raise error
        return found

    assert why_of_several(look, 60.0).culprit is not None


def test_who_takes_no_calls_and_whose_main_thread_only_looks_is_idle():
    library = Frame("/usr/lib/python3/threading.py", 327, "Condition.wait", is_library=True)
    found = why(
        Activity("job-server", 1, "node0"),
        Activity("driver", 1, "node0", None, (Stack("Thread-1", (library,)),)),
    )
    assert "at work:" not in str(found)
    assert "nothing runs there" in state_text(found.graph, "driver")
    # A thread of the user's own is.
    busy = why(
        Activity("driver", 1, "node0", None, (Stack("Thread-1", (library,)), Stack("Thread-2", REWARD)))
    )
    assert "driver is in reward.py:31 (time.sleep)" in str(busy)


def channel(*queues, producers=""):
    return idle("Channels:0", channels=(channel_of(*queues, producers=producers),))


def used(*names, gone=()):
    return tuple(QueueUser(name, 3, 40.0, name in gone) for name in names)


def why(*doing, **more):
    return why_of(JobActivity(doing, **more))


def culprit_of(*doing, **more):
    culprit = why(*doing, **more).culprit
    return culprit.address, culprit.operation


def test_nobody_waits():
    found = why(waits("driver"), idle("actor:0"), works("actor:1"))
    assert found.culprit is None
    assert str(found).splitlines() == [
        "nobody waits for anybody",
        "at work:",
        "  actor:1 stands in reward.py:31 (time.sleep) for 40 s, in generate()",
    ]
    assert str(why(idle("actor:0"))) == "nobody waits for anybody"


def test_a_queue_that_its_channel_has_not_told_of_is_not_taken_for_one_that_nobody_uses():
    told = channel_of(queue_of("other", 3, 3), num_untold=20_000)
    found = why(waits("actor:0", get()), works("rollout:0"), idle("Channels:0", channels=(told,)))
    assert "its queue is one of 20000 more of which Channels:0 has not told" in str(found)
    assert "nobody has ever put into it" not in str(found)


@pytest.mark.parametrize("since_s", [0.4, 41.0])
def test_a_wait_of_a_moment_is_not_said_to_hold_up_a_job(since_s):
    # Whoever is at work may put into it.
    taker = waits("actor:0", get(since_s=since_s))
    found = why(waits("driver", result("actor:0")), taker, works("rollout:0"), channel())
    assert found.culprit.address == "actor:0"
    assert found.headline.startswith("the job seems to move: actor:0 waits in") == (since_s < 1)
    assert found.headline.endswith("; driver waits for it")


def test_a_producer_that_has_come_back_has_not_ended():
    # Its former process is gone; with its name another one is there, which may have put something by now, or not.
    users = used("rollout:0", "rollout:1", gone=("rollout:0",)), used("rollout:0", gone=("rollout:0",))
    for putters in (users[0], (*users[0], *used("rollout:0")), users[1]):
        there = sorted({user.process for user in putters})
        found = why(
            waits("actor:0", get()),
            *map(idle, there),
            channel(queue_of("default", 0, 9, putters=putters)),
            gone=(GoneProcess("rollout:0", "killed", 12.0),),
        )
        assert "ended" not in str(found)
        ((waiting,),) = found.graph.blocked.values()
        assert (waiting.ends.processes, waiting.ends.gone) == (tuple(there), ())
        assert not waiting.ends.is_hopeless


def test_a_consumer_that_has_come_back_has_not_ended():
    queue = queue_of("default", 4, 4, getters=used("actor:0", gone=("actor:0",)), limits=("maxsize",))
    found = why(waits("rollout:0", put()), idle("actor:0"), channel(queue))
    assert "ended" not in str(found)
    assert found.culprit.address == "actor:0"


def test_the_sentence_of_a_batch_whose_producers_are_slow_and_gone():
    queue = queue_of("default", 8, 3900, putters=used("rollout:0", "rollout:1", gone=("rollout:1",)))
    found = why(
        waits("driver", result("actor:0")),
        waits("actor:0", get(kind="get_batch", needs=4096)),
        works("rollout:0"),
        channel(queue),
        gone=(GoneProcess("rollout:1", "killed", 12.0),),
    )
    assert (
        "actor:0 waits 41 s in get_batch('rollouts'): 3,900 of 4,096 are there; its producers: rollout:1 has ended, "
        "rollout:0 stands in reward.py:31 (time.sleep) for 40 s, in generate()" in str(found)
    )
    assert found.headline == (
        "rollout:0 stands in reward.py:31 (time.sleep) for 40 s, in generate(); actor:0 and driver wait for it"
    )
    assert found.culprit.since_s == 40.0


def test_a_chain_of_waits_leads_to_its_end():
    found = why(
        waits("driver", result("a:0")), waits("a:0", recv("b:0")), waits("b:0", recv("c:0")), works("c:0")
    )
    assert (found.culprit.address, found.culprit.operation) == ("c:0", "reward.py:31 (time.sleep)")
    assert found.culprit.waiters == ("b:0", "a:0", "driver")


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_ring_is_a_deadlock(size):
    ring = [waits(f"a:{rank}", recv(f"a:{(rank + 1) % size}", since_s=10 + rank)) for rank in range(size)]
    found = why(waits("driver", result("a:0")), *ring)
    assert set(found.culprit.cycle) == {f"a:{rank}" for rank in range(size)}
    assert found.culprit.address == f"a:{size - 1}"  # it has waited longest
    assert "driver" in found.culprit.waiters
    assert found.headline.startswith("deadlock a:0 → ")


def test_who_has_only_just_begun_to_wait_is_in_no_deadlock_yet():
    found = why(waits("a:0", recv("b:0", since_s=9.0)), waits("b:0", recv("a:0", since_s=0.01)))
    assert (found.culprit.address, found.culprit.operation, found.culprit.cycle) == ("a:0", "recv('b:0')", ())
    assert "deadlock" not in str(found)


def test_a_ring_that_somebody_who_works_may_end_is_no_deadlock():
    queue = queue_of("default", putters=used("b:0", "c:0"))
    found = why(waits("a:0", get()), waits("b:0", recv("a:0")), works("c:0"), channel(queue))
    assert found.culprit.address == "c:0"
    assert found.culprit.cycle == ()


def pipeline(at_its_end):
    """A driver that waits for a consumer that waits for one of two producers, of which one waits for a third."""
    queue = queue_of("default", putters=used("b:0", "driver"), getters=used("a:0"))
    driver = waits("driver", result("a:0", since_s=109.0))
    return waits("a:0", get(since_s=0.8)), driver, waits("b:0", recv("c:0", 0.8)), at_its_end, channel(queue)


@pytest.mark.parametrize(
    "at_its_end",
    [
        works("c:0"),
        waits("c:0", Wait(CHANNEL, "ack('rollouts')", subject="rollouts", detail="ack")),
    ],
    ids=["works", "acknowledges"],
)
def test_a_ring_is_no_deadlock_while_one_goes_on_for_whom_it_waits_by_others(at_its_end):
    assert "deadlock" not in str(why(*pipeline(at_its_end)))


def test_it_is_one_once_none_of_them_goes_on():
    assert "deadlock" in str(why(*pipeline(waits("c:0", recv("b:0", 0.8)))))


def fetches_ahead(main_frames=REWARD):
    """A rank whose main thread is somewhere while another thread of it waits for items."""
    main, ahead = (
        Stack("MainThread", main_frames, None, 40.0, 40.0),
        Stack("fetches ahead", REWARD, get(since_s=20.0)),
    )
    return Activity(
        "a:0", 1, "node0", (RunningCall("train", 40.0, "driver"),), (main, ahead), weights={"policy": 1}
    )


def test_who_waits_for_items_beside_its_work_is_at_work():
    queue = queue_of("default", putters=used("b:0"))
    new = Wait(WEIGHTS, "fetch_weights('policy')", 9.0, subject="policy", needs=2)
    found = why(waits("driver", result("a:0")), fetches_ahead(), waits("b:0", new), channel(queue))
    assert found.headline.startswith("a:0 stands in reward.py:31 (time.sleep) for 40 s, in train(); ")
    assert found.headline.endswith(" for it")
    assert "deadlock" not in str(found)


def test_who_stands_by_for_a_thread_that_waits_is_not():
    queue = queue_of("default", putters=used("b:0"))
    joins = (Frame("/lib/python3.11/threading.py", 1139, "_wait_for_tstate_lock", is_library=True), *REWARD)
    found = why(fetches_ahead(joins), waits("b:0", recv("a:0")), channel(queue))
    assert set(found.culprit.cycle) == {"a:0", "b:0"}


def test_two_threads_of_one_process_are_one():
    stacks = tuple(Stack(f"reads {number}", REWARD, get()) for number in range(2))
    found = why(Activity("a:0", 1, "node0", (RunningCall("read", 50.0, "driver"),), stacks), channel())
    assert found.headline.startswith("a:0 waits 41 s in get('rollouts')")


def test_what_is_on_its_way_to_who_waits_is_nothing_to_wait_for():
    held = (Waiting("a:0", "delivery of 8 items, on the way", 0.6), Waiting("c:0", "lease of 1 item", 3.0))
    queue = queue_of("default", 9, 9, held=held, putters=used("b:0"))
    found = why(waits("a:0", get()), waits("b:0", recv("a:0")), works("c:0"), channel(queue))
    assert "delivery" not in str(found)
    assert "its producers and who has items of it: c:0 stands in" in str(found)
    assert not any(each.cycle == ("a:0",) for each in found.culprits)


def test_a_full_queue_and_an_empty_one_make_a_deadlock():
    full = queue_of("default", 4, 4, limits=("maxsize 4",), putters=used("b:0"), getters=used("a:0"))
    empty = queue_of("next", putters=used("b:0"), getters=used("a:0"))
    found = why(waits("a:0", get("'next'")), waits("b:0", put()), channel(full, empty))
    assert set(found.culprit.cycle) == {"a:0", "b:0"}
    assert (
        "put('rollouts'): the queue is full with 4 items (maxsize 4); its consumers: a:0 waits itself"
        in str(found)
    )


def test_a_stopped_process_comes_before_all_that_waits_for_it():
    stopped = Silent("b:0", 7, "stopped", "its process is stopped (SIGSTOP)")
    found = why(waits("driver", result("a:0")), waits("a:0", recv("b:0")), works("c:0"), silent=(stopped,))
    assert (found.culprit.address, found.culprit.operation) == ("b:0", "stopped")
    assert found.culprit.waiters == ("a:0", "driver")


def test_a_stopped_process_for_which_nobody_waits_comes_last():
    stopped = Silent("c:0", 7, "stopped", "its process is stopped (SIGSTOP)")
    found = why(waits("a:0", recv("b:0")), works("b:0"), silent=(stopped,))
    assert [each.address for each in found.culprits] == ["b:0", "c:0"]
    assert "also: c:0 is stopped" in str(found)


def test_a_held_interpreter_is_named_with_its_line():
    stack = Stack("MainThread", (Frame("/usr/lib/python3.11/ctypes.py", 1, "call", is_library=True), *REWARD))
    stuck = Silent("b:0", 7, "stuck", "something keeps its interpreter (the GIL)", stacks=(stack,))
    found = why(waits("a:0", recv("b:0")), silent=(stuck,))
    assert found.culprit.operation == "reward.py:31 (time.sleep)"
    assert (
        "does not answer: something keeps its interpreter (the GIL); it is in reward.py:31" in found.headline
    )


def test_who_waits_for_the_gone_waits_in_vain():
    found = why(waits("a:0", recv("b:0")), gone=(GoneProcess("b:0", "killed by SIGKILL", 3.0),))
    assert found.headline == "a:0 waits 10 s in recv('b:0'): b:0 has ended"


def test_a_name_that_nobody_has_is_compared_with_those_there_are():
    found = why(waits("a:0", recv("rolout:0")), idle("rollout:0"))
    assert "nobody is called 'rolout:0'; did you mean 'rollout:0'?" in found.headline
    found = why(waits("a:0", Wait(NAME, "look-up of 'rolouts:0'", 3.0, subject="rolouts:0")), channel())
    assert "nobody has the name 'rolouts:0' yet; did you mean 'rollouts:0'?" in found.headline


def test_a_queue_that_nobody_uses_beside_one_that_nobody_reads():
    misspelt = queue_of("trajectorys", 3, 3, putters=used("b:0"))
    found = why(waits("a:0", get("'trajectories'")), idle("b:0"), channel(misspelt))
    assert found.culprit.address == "a:0"
    assert "3 items lie in queue 'trajectorys', put by b:0, where nobody gets any" in found.headline


def test_a_queue_into_which_nobody_has_put_yet_is_not_hopeless_while_somebody_works():
    found = why(waits("driver", result("a:0", "b:0")), waits("a:0", get()), works("b:0"), channel())
    assert [each.address for each in found.culprits] == ["b:0", "a:0"]
    assert "nobody has ever put into it" in str(found)


def test_a_queue_whose_users_are_gone():
    queue = queue_of("default", 2, 2, putters=used("b:0", "b:1", gone=("b:0", "b:1")))
    assert "b:0 and b:1, who used it, have ended" in why(waits("a:0", get()), channel(queue)).headline


def test_what_counted_producers_say_of_themselves_is_told():
    found = why(waits("a:0", get()), channel(queue_of("default"), producers="1 of 2 producers are done"))
    assert "1 of 2 producers are done" in found.headline


def test_a_put_waits_for_who_has_items_on_lease():
    held = (Waiting("c:0", "lease of 4 items", 20.0),)
    full = queue_of("default", held=held, limits=("maxsize 4",))
    assert culprit_of(waits("b:0", put()), works("c:0"), channel(full)) == (
        "c:0",
        "reward.py:31 (time.sleep)",
    )


SLOTS = tuple(
    Waiting("b:0", f"slot {number}, for an item of version 5", 20.0 - number) for number in (2, 3, 4)
)


def test_who_makes_what_is_waited_for_is_told_once_and_not_slot_by_slot():
    making = queue_of(
        "default", 1, 0, held=(*SLOTS, Waiting("c:0", SLOTS[0].operation, 3.0)), putters=used("b:0")
    )
    found = why(
        waits("a:0", get(needs=4, kind="get_batch", counts_items=True)), works("b:0"), channel(making)
    )
    assert (
        "1 of 4 are there; b:0 has 3 slots for items that it makes, the oldest for 18 s; its producers: b:0"
        in str(found)
    )


def test_who_waits_for_a_slot_waits_for_who_has_them_and_who_takes_items():
    held = (*SLOTS, Waiting("c:0", SLOTS[0].operation, 3.0))
    queue = queue_of("default", held=held, putters=used("b:0"), getters=used("a:0"))
    asking = waits("d:0", get(kind="admit"))
    told = "no slot is free; b:0 has 3 slots for items that it makes, the oldest for 18 s; c:0 has a slot for an item"
    assert told in str(why(asking, works("b:0"), works("c:0"), idle("a:0"), channel(queue)))
    assert culprit_of(asking, works("b:0"), works("c:0"), idle("a:0"), channel(queue))[0] == "b:0"


def test_a_put_that_nobody_has_ever_made_room_for():
    full = queue_of("default", 4, 4, limits=("maxsize 4",), putters=used("b:0"))
    assert (
        "nobody who is there has ever taken anything there"
        in why(waits("b:0", put()), channel(full)).headline
    )


def test_a_put_into_a_queue_that_is_not_full_is_no_ones_fault():
    """It was on its way when its process was asked."""
    free = queue_of("default", 2, 2, putters=used("b:0"), getters=used("a:0"))
    for queues in ((free,), ()):
        told = str(why(waits("b:0", put()), waits("a:0", recv("c:0")), works("c:0"), channel(*queues)))
        assert "b:0 waits 30 s in put('rollouts'): it is on its way: no put waits there" in told
        assert "full" not in told


def test_an_acknowledgement_waits_for_the_channels_process():
    ack = Wait(CHANNEL, "ack('rollouts')", peers=("driver",), subject="rollouts", detail="ack")
    held = channel_of(queue_of("default"), held_by="driver")
    driver = waits("driver", result("b:0", since_s=9.0), channels=(held,))
    found = why(waits("b:0", ack), driver, works("c:0"))
    assert "b:0 waits in ack('rollouts'): driver, which holds it, has not answered yet" in str(found)
    assert not found.culprit.cycle  # the I/O thread of the driver answers, whatever its main thread waits for


def test_of_groups_there_may_be_more_items_than_one_needs():
    queue = queue_of("default", 10, 10, putters=used("b:0"))
    found = why(waits("a:0", get(kind="get_group", needs=8, counts_items=True)), works("b:0"), channel(queue))
    assert "get_group('rollouts'): there are 10 items, but no group is complete; its producers: b:0" in str(
        found
    )


def test_a_stack_is_what_is_the_users_and_its_innermost_line():
    torch = Frame("/site-packages/torch/nn/modules/module.py", 1789, "_call_impl", is_library=True)
    stack = Stack("MainThread", (torch, torch, REWARD[0], *[torch] * 20, REWARD[1], torch))
    found = why(
        waits("a:0", recv("b:0")), Activity("b:0", 1, "n", (RunningCall("step", 5.0, "a:0"),), (stack,))
    )
    lines = str(found).partition("b:0:\n")[2].splitlines()
    assert [line.split()[0].rpartition("/")[2] for line in lines[1:4]] == [
        "module.py:1789",
        "reward.py:31",
        "main.py:9",
    ]


def test_a_channel_whose_process_does_not_answer():
    stopped = Silent("Channels:0", 7, "stopped", "its process is stopped")
    found = why(waits("a:0", get()), silent=(stopped,))
    assert found.culprit.address == "Channels:0"
    assert "channel 'rollouts' is held by Channels:0: Channels:0 is stopped" in str(found).replace("; ", ": ")


def test_weights_that_nobody_publishes_and_a_version_that_does_not_come():
    fetch = Wait(WEIGHTS, "fetch_weights('polcy')", 5.0, subject="polcy", needs=-1)
    found = why(waits("a:0", fetch), idle("b:0", weights={"policy": 3}))
    assert "nobody publishes weights 'polcy'; did you mean 'policy'?" in found.headline
    fetch = Wait(WEIGHTS, "fetch_weights('policy', min_version=5)", 5.0, subject="policy", needs=5)
    found = why(waits("a:0", fetch), works("b:0", weights={"policy": 3}))
    assert found.culprit.address == "b:0"
    assert "b:0 publishes them: version 3 is there, and 5 is wanted" in str(found)
    found = why(waits("a:0", fetch), works("b:0", weights={"policy": 5}))
    assert "b:0 publishes them: version 5 is on its way, or lacks what processes had that are gone" in str(
        found
    )
    late, early = works("b:1", weights={"policy": 4}), idle("b:0", weights={"policy": 5})
    found = why(waits("a:0", fetch), early, late)
    assert found.culprit.address == "b:1"
    assert "b:1 published version 4 last, others 5, and 5 is wanted" in str(found)


def test_devices_wait_for_who_has_them():
    turns = (TurnNote("b:0", ("0:1",), 9.0, True), TurnNote("a:0", ("0:1",), 4.0, False))
    lock = Wait(DEVICE, "device_lock() of 0:1", 4.0, subject="0:1")
    assert culprit_of(waits("a:0", lock), works("b:0"), waits("driver", turns=turns))[0] == "b:0"


def test_devices_of_a_group_wait_for_its_ranks_that_have_not_entered():
    turns = (TurnNote("b:0", ("0:1",), 9.0, True), TurnNote("a:0", ("0:1",), 4.0, False, ("a:1",)))
    lock = Wait(DEVICE, "device_lock(group=True) of 0:1", 4.0, subject="0:1")
    found = why(waits("a:0", lock), works("a:1"), works("b:0"), waits("driver", turns=turns))
    assert found.culprit.address == "a:1"
    assert "a:1 is not in device_lock(group=True)" in str(found)


def test_a_collective_waits_for_the_ranks_that_are_not_in_it():
    reduce, barrier = (Wait(COLLECTIVE, f"torch.distributed.{name}()") for name in ("all_reduce", "barrier"))
    found = why(waits("a:0", reduce), waits("a:1", reduce), idle("a:2"), idle("b:0"))
    assert (found.culprit.address, found.culprit.operation) == ("a:2", "idle")
    assert found.culprit.waiters == ("a:0", "a:1")
    found = why(waits("a:0", reduce), waits("a:1", barrier))
    assert "a:1 is in torch.distributed.barrier()" in str(found)
    found = why(waits("a:0", reduce), gone=(GoneProcess("a:1", "killed", 1.0),))
    assert "a:1 has ended" in found.headline


def test_a_launch_waits_for_the_ranks_that_are_not_ready():
    launch = Wait(LAUNCH, "launch of 'a'", 8.0, 120.0, ("a:1",), detail="a:1: still in __init__")
    found = why(waits("driver", launch), works("a:1", same_for_s=0.0))
    assert "driver waits 8 s in launch of 'a': a:1: still in __init__; a:1 runs generate()" in str(found)


def test_ranks_that_wait_for_the_same_share_a_line():
    found = why(*(waits(f"a:{rank}", recv("b:0", 10 + rank)) for rank in range(20)), works("b:0"))
    assert "a:0, a:1, a:2, a:3, a:4, a:5 and 14 more wait 29 s in recv('b:0')" in str(found)
    assert len(found.culprit.waiters) == 20


def test_who_only_looks_is_not_told_of():
    found = why(waits("rlinf-why:12", recv("b:0")), idle("b:0"))
    assert found.culprit is None
    assert "rlinf-why" not in json.dumps(found.to_dict())
    assert why(silent=(Silent("rlinf-channels:7", 7, "stopped"),)).culprit is None


def test_a_group_may_be_called_almost_as_who_only_looks():
    found = why(waits("a:0", recv("rlinf-rollout:0")), works("rlinf-rollout:0"))
    assert found.culprit.address == "rlinf-rollout:0"


def test_nobody_stands_in_a_call_for_longer_than_it_runs():
    """Each of its calls was at the same line when somebody looked."""
    short = why(waits("a:0", recv("b:0")), works("b:0", since_s=0.5, same_for_s=400.0))
    assert "b:0 runs generate() for 0 s, now in reward.py:31" in short.headline
    longer = why(waits("a:0", recv("b:0")), works("b:0", since_s=3.0, same_for_s=400.0))
    assert "b:0 stands in reward.py:31 (time.sleep) for 3 s" in longer.headline


def test_who_comes_by_a_line_again_and_again_does_not_stand_there():
    loop = why(waits("a:0", recv("b:0")), works("b:0", still_for_s=0.5))
    assert "b:0 runs, at reward.py:31 (time.sleep) in every look for 40 s, in generate()" in loop.headline
    assert "stands" not in str(loop)
    slow = why(waits("a:0", recv("b:0")), works("b:0", still_for_s=4.0))
    assert "b:0 stands in reward.py:31 (time.sleep) for 4 s, in generate()" in slow.headline


def test_names_that_would_move_a_cursor_do_not():
    told = str(why(waits("a:0", recv("two\nlines\x1b[2J:0")), works("b:0")))
    assert "two lines" in told
    assert "\x1b" not in told


def test_it_is_data_too():
    data = json.loads(json.dumps(why(waits("a:0", recv("b:0")), works("b:0")).to_dict()))
    assert data["culprits"][0]["address"] == "b:0"
    assert data["waits"][0]["processes"] == ["b:0"]


def test_about_a_process_link_by_link():
    found = why(waits("driver", result("a:0")), waits("a:0", recv("b:0")), works("b:0"), idle("c:0"))
    assert found.about("driver").splitlines() == [
        "driver waits 41 s in actor.train(): a:0 has not answered",
        "a:0 waits 10 s in recv('b:0'): b:0 stands in reward.py:31 (time.sleep) for 40 s, in generate()",
    ]
    assert found.about("c:0") == "c:0 is idle: no call runs there"
    assert found.about("z:9") == "z:9 is gone: it is not part of the job"


def in_threads(name, *found):
    stacks = tuple(Stack("MainThread", REWARD, wait, thread=number) for number, wait in enumerate(found, 1))
    return Activity(name, 1, "node0", None if name == "driver" else (), stacks)


def test_about_one_of_several_waits_tells_of_that_one():
    found = why(
        in_threads("driver", result("a:0", since_s=500.0), result("b:0", since_s=3.0)),
        waits("a:0", recv("c:0", 400.0)),
        in_threads("b:0", recv("c:0", 300.0), recv("d:0", 2.0)),
        works("c:0"),
        waits("d:0", recv("e:0", 1.0)),
        idle("e:0"),
    )
    assert found.about("driver", 2, 3.6).splitlines() == [
        "driver waits 4 s in actor.train(): b:0 has not answered",
        "b:0 waits 300 s in recv('c:0'): c:0 stands in reward.py:31 (time.sleep) for 40 s, in generate()",
    ]
    assert found.about("b:0", 2).splitlines() == [
        "b:0 waits 2 s in recv('d:0')",
        "d:0 waits 1 s in recv('e:0'): e:0 is idle: no call runs there",
    ]
    # Of a thread that is not known, what waits for longest.
    assert found.about("driver", 7).splitlines()[0].startswith("driver waits 500 s")


def test_about_one_of_the_tasks_of_an_event_loop_tells_of_that_one():
    tasks = [
        Stack(name, REWARD, result(rank, since_s=since_s), thread=1)
        for name, rank, since_s in (("MainThread", "a:0", 3.0), ("task", "b:0", 500.0), ("task", "c:0", 0.5))
    ]
    found = why(Activity("driver", 1, "node0", None, tuple(tasks)), works("a:0"), works("b:0"), works("c:0"))
    for waited_s, rank in ((3.2, "a:0"), (501.0, "b:0"), (0.6, "c:0")):
        assert f"{rank} stands in" in found.about("driver", 1, waited_s).splitlines()[-1]


def test_about_a_long_chain_and_a_ring():
    chain = [waits(f"a:{rank}", recv(f"a:{rank + 1}")) for rank in range(9)]
    told = why(*chain, works("a:9")).about("a:0").splitlines()
    assert told[3:] == [
        "a:3 waits 10 s in recv('a:4')",
        "and so on, by 5 more",
        "a:9 stands in reward.py:31 (time.sleep) for 40 s, in generate()",
    ]
    ring = why(waits("driver", result("a:0")), waits("a:0", recv("b:0")), waits("b:0", recv("a:0")))
    assert ring.about("driver").splitlines()[0] == "driver waits 41 s in actor.train(): a:0 has not answered"
    assert ring.about("driver").splitlines()[1].startswith("deadlock a:0 → b:0 → a:0: ")
    assert ring.about("b:0").splitlines()[1].startswith("deadlock a:0 → b:0 → a:0: ")


def test_a_thousand_ranks_take_no_time():
    ring = [waits(f"a:{rank}", recv(f"a:{rank - 1}")) for rank in range(1, 1000)]
    found = why(waits("driver", result(*(f"a:{rank}" for rank in range(1000)))), works("a:0"), *ring)
    assert found.culprit.address == "a:0"
    assert len(found.culprit.waiters) == 1000


def test_who_waits_for_a_producer_is_told_of_the_queue_into_which_that_one_puts():
    right = queue_of("trajectories", putters=used("b:0"))
    wrong = queue_of("trajectory", 4, 4, putters=used("b:0"))
    other = queue_of("metrics", 1, 1, putters=used("b:0"), getters=used("c:0"))
    get = Wait(
        CHANNEL,
        "get('rollouts', 'trajectories')",
        9.0,
        subject="rollouts",
        queue=repr(right.depth.name),
        detail="get",
    )
    found = str(why(waits("a:0", get), waits("b:0"), waits("c:0"), channel(right, wrong, other)))
    told = "4 items lie in queue 'trajectory', put by b:0, where nobody gets any (a misspelt 'trajectories'?)"
    assert told in found
    assert "metrics" not in found


def test_who_was_stopped_before_it_could_say_its_name_is_named():
    stopped = Silent("Channels:0", 7, "stopped", "its process is stopped", process_id="67e8fe5b")
    unnamed = Wait(CHANNEL, "get('rollouts')", 9.0, peers=("67e8fe5b",), subject="rollouts", detail="get")
    culprit = why(waits("a:0", unnamed), silent=(stopped,)).culprit
    assert (culprit.address, culprit.operation, culprit.waiters) == ("Channels:0", "stopped", ("a:0",))


def test_a_wait_that_an_emulated_link_holds_up_says_so_at_both_ends():
    note = LinkNote("rollout:0", MESSAGE, 12 << 20, 12.5e6, 0.94)
    receiver = waits("actor:0", recv("rollout:0"), links=(note,))
    sender = waits("rollout:0", Wait(MESSAGE, "send to 'actor:0'", 5.0, None, ("actor:0",)))
    found = why_of(JobActivity((receiver, sender, idle("reward:0"))))
    link = "the emulated link rollout:0 -> actor:0: 12 MiB at 100 Mbit/s, 0.9 s to go"
    assert found.about("actor:0") == f"actor:0 waits 10 s in recv('rollout:0'): {link}"
    assert found.about("rollout:0") == f"rollout:0 waits 5 s in send to 'actor:0': {link}"
    assert link in found.headline


def test_a_link_without_a_limit_and_one_that_is_not_booked_yet_are_told_so():
    free = LinkNote("rollout:0", CHANNEL, 10, 0.0, 0.25)
    queued = LinkNote("rollout:1", CHANNEL, 10, 1e6, None)
    other = LinkNote("rollout:1", WEIGHTS, 10, 1e6, None)
    get = Wait(CHANNEL, "get('items')", 3.0, None, (), "items")
    found = why_of(JobActivity((waits("actor:0", get, links=(free, queued, other)),)))
    assert found.about("actor:0") == (
        "actor:0 waits 3 s in get('items'): the emulated link rollout:0 -> actor:0: 10 bytes, 0.2 s to go; "
        "the emulated link rollout:1 -> actor:0: 10 bytes at 8 Mbit/s, waits for its turn"
    )


def test_a_link_to_which_a_wait_has_no_relation_is_not_told_of_there():
    note = LinkNote("rollout:1", MESSAGE, 10, 0.0, 0.25)
    found = why_of(JobActivity((waits("actor:0", recv("rollout:0"), links=(note,)), idle("rollout:0"))))
    assert "link" not in str(found)
