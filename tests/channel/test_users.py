"""Who uses which queues of a channel, as told to whoever looks."""

from rlinf.scheduler.channel import control_wire, wire
from rlinf.scheduler.channel.users import MAX_SHOWN, MAX_USES, Users, channel_note

NAMES = {"p": "rollout:0", "g": "actor:0"}


def put(queue):
    return wire.Put(1, queue, 0, True, 0)


def queue_of(name, num_items=1, waiting=()):
    return control_wire.ExplainedQueue(
        control_wire.Depth(name, num_items, num_items, 0, 0, 0, 0, 0, 0, 0, []),
        0.0,
        list(waiting),
        [],
        [],
        False,
        "",
    )


def explanation(*queues):
    return control_wire.Explanation("driver", False, 0, 0, 0, 0, 0.0, 0.0, "", list(queues), [])


def noted(users, *queues):
    note = channel_note("c", explanation(*queues), users, NAMES, now=10_000.0)
    return {each.name: each for each in note.queues}


def test_of_thousands_of_queues_those_with_waiters_are_told_and_some_others():
    users = Users()
    names = [f"q{number}" for number in range(2 * MAX_SHOWN)]
    for at, name in enumerate(names):
        users.note("p", [put(name)], now=float(at))
    waiting = control_wire.WaitingNote("actor:0", "get", 5.0)
    waited = [queue_of(name, 0, [waiting]) for name in names[:MAX_SHOWN]]
    found = noted(users, *waited, queue_of("misspelt"))
    newest = [repr(name) for name in names[-MAX_SHOWN + 1 :]]
    assert set(found) == {*(repr(name) for name in names[:MAX_SHOWN]), "'misspelt'", *newest}
    assert [user.process for user in found["'q0'"].putters] == ["rollout:0"]


def test_who_uses_a_queue_again_and_again_is_not_forgotten_for_queues_that_are_used_once():
    users = Users()
    users.note("p", [put("always")], now=0.0)
    for number in range(MAX_USES):
        users.note("p", [put(f"q{number}")], now=1.0)
        users.note("p", [put("always")], now=2.0)
    assert users.by_queue(NAMES, 2.0)["always"].putters[0].num_operations == MAX_USES + 1
