"""Stories in which more of a kind happens than in those that are drawn, for mutants that these seldom tell of."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from rlinf_scheduler.queueing.shard_plan import POLICIES, ShardPlan
from rlinf_scheduler.queueing.taps import TapTerms
from simulator.script import FIRST_HOLDER, LONG_US, NUM_NODES, SERVER_NUMBER, SHARDS, TAP, Call, Fault, Script

# So large an item lies in shared memory, or stays on its producer's node.
LARGE_BYTES = 140_000
# About so long makers and takers are at work.
ADMISSION_US = 400_000
NUM_TURNS, NUM_GETS = 8, 4


def of_marks(script: Script) -> Script:
    """A subscription marks what consumers have in their handles, who die with it: nothing else happens."""
    steps: list[Call | Fault] = [_call(0, 0, 0, "subscribe", TAP)]
    for turn in range(NUM_TURNS):
        at_us, number = 20_000 * (1 + turn), 1 + NUM_GETS * 3 * turn
        for each in range(number, number + NUM_GETS):
            steps.append(_call(at_us, each, 0, "get", TAP))
            steps.append(_call(at_us, each + NUM_GETS, 1, "get", "q0"))
            steps.append(_call(at_us + 2_000, each + 2 * NUM_GETS, 2, "put", "q0"))
        steps.append(Fault(at_us + 15_000, "die", 1, 1_000))
    return Script(script.seed, 3, 0, 1_000_000, 0, None, 0, 0, 0, tuple(steps), TapTerms("q0"))


def of_late_first_contacts(script: Script) -> Script:
    """A holder and the server are cut off when they meet first, one gives up before the other, and both live."""
    draw = Random(f"harder {script.seed}")
    producer, consumer = 1, 0
    holder = FIRST_HOLDER - producer
    steps: list[Call | Fault] = [Fault(0, "cut", holder, 30_000_000 + draw.randrange(4_000_000))]
    for number in range(4):
        steps.append(_call(1_000 * (1 + number), number, producer, "put", "q0"))
    steps.append(_call(60_000_000, 4, consumer, "get", "q0"))
    for at_us in range(1_000_000, 25_000_000, 5_000_000):
        kind = draw.choice(("pause", "pause server"))
        steps.append(Fault(at_us, kind, holder, draw.randrange(3_000_000)))
    told = Script(script.seed, 2, 0, 1_000_000, 0, None, 0, 0, 0, (), has_holders=True)
    return _with(told, steps, [])


def of_lost_servers(script: Script) -> Script:
    """The server dies while holders have items for it."""
    draw = Random(f"harder {script.seed}")
    steps: list[Call | Fault] = [_call(1_000 * (1 + number), number, 1, "put", "q0") for number in range(4)]
    steps.append(Fault(draw.randrange(5_000, 100_000), "kill server", 0, 1_000))
    return Script(script.seed, 2, 0, 1_000_000, 0, None, 0, 0, 0, tuple(steps), has_holders=True)


def with_lost_nodes(script: Script) -> Script:
    """Nodes are lost whose items are large, and users have not looked at them."""
    if not script.has_holders:
        return script
    draw, length_us = _drawn(script)
    losses = [Fault(draw.randrange(2 * length_us), "lose node", _holder(draw), 1_000) for _ in range(12)]
    return _with(script, [_left_in_its_handle(step) for step in script.steps], losses)


def with_slow_nodes(script: Script) -> Script:
    """Puts are given up, and their producers die, while the processes that are to hold their items do nothing."""
    if not script.has_holders:
        return script
    draw, length_us = _drawn(script)
    faults = [
        Fault(draw.randrange(length_us), "pause", _holder(draw), draw.choice((1_000, 50_000)))
        for _ in range(20)
    ]
    faults += [
        Fault(draw.randrange(length_us), "stall", _holder(draw), draw.choice((1_000, 50_000)), SERVER_NUMBER)
        for _ in range(20)
    ]
    faults += [Fault(draw.randrange(length_us), "die", _client(draw, script), 1_000) for _ in range(20)]
    steps = [
        replace(
            step, size_bytes=LARGE_BYTES, blocking=False, drop=draw.choice(("", "begun", "later", "cancel"))
        )
        if isinstance(step, Call) and step.kind == "put"
        else step
        for step in script.steps
    ]
    return _with(script, steps, faults)


def with_looks(script: Script) -> Script:
    """Users look at large items, whose holders they often do not reach."""
    if not script.has_holders:
        return script
    draw, length_us = _drawn(script)
    holders = range(FIRST_HOLDER, FIRST_HOLDER - NUM_NODES, -1)
    faults = [
        Fault(draw.randrange(length_us), "cut", holder, LONG_US, client)
        for holder in holders
        for client in range(script.num_clients)
    ]
    steps = [_looking(step, draw) for step in script.steps]
    return _with(script, steps, faults)


def _looking(step: Call | Fault, draw: Random) -> Call | Fault:
    if not isinstance(step, Call) or step.kind not in ("put", "get"):
        return step
    if step.kind == "put":
        return replace(step, size_bytes=LARGE_BYTES, drop="", timeout_us=None)
    return replace(step, kind="peek", blocking=True) if draw.random() < 0.8 else step


def with_pauses_of_the_server(script: Script) -> Script:
    """Users' threads leave what they have sent by themselves while the server does nothing."""
    draw, length_us = _drawn(script)
    faults = [
        Fault(draw.randrange(length_us), "pause server", 0, draw.choice((300, 3_000, 20_000)))
        for _ in range(40)
    ]
    steps = [
        replace(
            step,
            blocking=draw.random() < 0.7,
            size_bytes=10,
            timeout_us=draw.choice((None, 400, 1_000, 10_000)),
        )
        if isinstance(step, Call) and step.kind in ("put", "get")
        else step
        for step in script.steps
    ]
    return _with(script, steps, faults)


def with_absences(script: Script) -> Script:
    """Users of a durable channel do nothing while its process dies, and come back when they may be given up."""
    if not script.durable:
        return script
    draw, length_us = _drawn(script)
    faults = []
    for _ in range(4):
        at_us = draw.randrange(length_us)
        faults += [Fault(at_us, "pause", client, LONG_US) for client in range(script.num_clients)][1:]
        faults.append(Fault(at_us + 1_000, "kill server", 0, 1_000))
    return _with(script, list(script.steps), faults)


def with_slow_takers(script: Script) -> Script:
    """Who takes items of a queue that admits, besides its trainer, does nothing for a while, again and again."""
    draw, _ = _drawn(script)
    faults = [
        Fault(draw.randrange(ADMISSION_US), "pause", 1, draw.choice((3_000, 30_000, 300_000)))
        for _ in range(20)
    ]
    return _with(replace(script, num_clients=max(2, script.num_clients)), list(script.steps), faults)


def with_bursts(script: Script) -> Script:
    """Users put and get much at once, large and small, and wait for none of it."""
    draw, length_us = _drawn(script)
    step_us = 1 + length_us // 20
    steps = [
        replace(
            step,
            at_us=step.at_us // step_us * step_us,
            client=step.client % 2,
            blocking=False,
            drop="",
            timeout_us=None,
            size_bytes=draw.choice((10, 10, LARGE_BYTES)),
        )
        if isinstance(step, Call) and step.kind in ("put", "get")
        else step
        for step in script.steps
    ]
    maxsize, total_bytes = draw.choice(((0, 0), (2, 0), (0, 300_000)))
    return replace(_with(script, steps, []), maxsize=maxsize, total_bytes=total_bytes)


def with_members(script: Script) -> Script:
    """Members of the subscription come and go, and are succeeded or not, while others read it."""
    draw, length_us = _drawn(script)
    steps: list[Call | Fault] = [
        replace(step, queue=TAP) if isinstance(step, Call) and step.kind == "get" else step
        for step in script.steps
    ]
    first = 100_000
    for number in range(first, first + 40, 2):
        at_us, client = draw.randrange(length_us), _client(draw, script)
        come = _call(at_us, number, client, "subscribe", TAP)
        go = replace(
            come,
            at_us=at_us + draw.randrange(1 + length_us // 10),
            number=number + 1,
            kind="unsubscribe",
            turn=number,
            fails=draw.random() < 0.5,
        )
        steps += [replace(come, blocking=False), replace(go, blocking=False)]
    return replace(_with(script, steps, []), successor_us=draw.choice((10_000, 1_000_000)))


def _call(at_us: int, number: int, client: int, kind: str, queue: str) -> Call:
    return Call(at_us, number, client, kind, queue, 0, LARGE_BYTES, None, blocking=queue == TAP, drop="")


def _drawn(script: Script) -> tuple[Random, int]:
    return Random(f"harder {script.seed}"), 1 + max(step.at_us for step in script.steps)


def _client(draw: Random, script: Script) -> int:
    return draw.randrange(script.num_clients)


def _holder(draw: Random) -> int:
    return FIRST_HOLDER - draw.randrange(NUM_NODES)


def _left_in_its_handle(step: Call | Fault) -> Call | Fault:
    if not isinstance(step, Call) or step.kind not in ("put", "get"):
        return step
    if step.kind == "put":
        return replace(step, size_bytes=LARGE_BYTES)
    return replace(step, blocking=step.queue == TAP, drop="", timeout_us=None)


def _with(script: Script, steps: list[Call | Fault], faults: list[Fault]) -> Script:
    return replace(script, steps=tuple(sorted((*steps, *faults), key=lambda step: step.at_us)))


def of_resizes(script: Script) -> Script:
    """A group of a few ranks is resized while it trains; those that leave die soon, and some before that."""
    draw = Random(f"harder {script.seed}")
    steps: list[Call | Fault] = [
        _call(draw.randrange(200_000), number, draw.randrange(4), "put", SHARDS) for number in range(40)
    ]
    for _ in range(6):
        at_us, rank = draw.randrange(200_000), draw.randrange(4)
        steps.append(Fault(at_us, "resize", rank, draw.choice((1_000, 30_000, 100_000))))
    steps += [Fault(draw.randrange(200_000), "die", draw.randrange(4), 10_000) for _ in range(2)]
    steps += [_call(210_000, 40, 0, "end", SHARDS)] if draw.random() < 0.5 else []
    plan = ShardPlan(draw.randint(1, 3), draw.choice(POLICIES), batch_items=draw.randint(1, 5))
    steps = sorted(steps, key=lambda step: step.at_us)
    return Script(script.seed, 4, 0, 1_000_000, 0, plan, 0, 0, 0, tuple(steps), is_resized=True)


def of_ranks_that_produce(script: Script) -> Script:
    """The ranks of a group that is resized are the producers; they come, fail, die, are done, and come again."""
    script, draw = of_resizes(script), Random(f"ranks that produce {script.seed}")
    steps = [step for step in script.steps if getattr(step, "kind", "") != "end"]
    for number in range(100, 120, 2):
        client, at_us = draw.randrange(4), draw.randrange(200_000)
        steps.append(_call(at_us, number, client, "join", ""))
        leave = _call(draw.randrange(at_us, 200_000), number + 1, client, "leave", "")
        if draw.random() < 0.9:
            steps.append(replace(leave, turn=number, fails=draw.random() < 0.2))
    steps.append(Fault(draw.randrange(200_000), "die", draw.randrange(4), 100))
    steps.sort(key=lambda step: step.at_us)
    successor_us = draw.choice((0, 10_000, 1_000_000))
    return replace(script, steps=tuple(steps), successor_us=successor_us, group_produces=True)
