"""What happens to the world from outside: calls of users and faults, each at its time; drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from rlinf_scheduler.channel.deadlines import Survives
from rlinf_scheduler.queueing.shard_plan import POLICIES, ShardPlan
from rlinf_scheduler.queueing.taps import TapTerms
from rlinf_scheduler.queueing.wanted import NO_LIMITS, Limits

NOWAIT = -1
BATCHES = ("batch", "drain")
SHARDS = "shards"
"""The queue of the ranks."""
TAP = "tap"
"""What the subscription reads."""
SERVER_NUMBER = -2
NUM_NODES = 2
FIRST_HOLDER = -10
"""The number of node 0's holder; that of node 1 is one less."""
# An obstacle that lasts so long ends sessions, or may.
LONG_US = 35_000_000


@dataclass(frozen=True, slots=True)
class Call:
    """A user calls a channel.

    Attributes:
        at_us: when.
        number: unique in a script; a put's number is also its item.
        client: the number of the client.
        kind: `put`, `get`, `batch`, `group`, `lease`, `peek`, `drain`, `end`, `flush`, `join`, `leave`, `subscribe` or
            `unsubscribe` of a channel, `send` or `recv` of a mailbox, `publish` or `fetch` of weights.
        queue: the queue's name, or the topic.
        weight: of the item, or the batch's target, 0 for a batch without one; how many items a group has.
        size_bytes: of the item.
        timeout_us: None without a deadline, NOWAIT without waiting.
        blocking: the user's thread begins its next call when this one has ended.
        drop: at which step the user leaves the call: `begun`, `delivered`, `later`, or never (empty);
            `cancel`: the user asks for its end, and waits for that.
        peer: the number of the process at the other end of `send` and `recv`.
        priority: of the item.
        limits: what else a batch has to be.
        group: that the item belongs to.
        turn: of a `leave`: the number of the `join`; of an `unsubscribe`, that of the `subscribe`.
        fails: of a `leave`, or an `unsubscribe`: it is left by an error.
        ttl_us: of a `lease`, which with limits is of a batch.
    """

    at_us: int
    number: int
    client: int
    kind: str
    queue: str
    weight: int
    size_bytes: int
    timeout_us: int | None
    blocking: bool
    drop: str
    peer: int = SERVER_NUMBER
    priority: int = 0
    limits: Limits | None = None
    group: str | None = None
    turn: int = 0
    fails: bool = False
    ttl_us: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """Something breaks, or a channel is closed.

    Attributes:
        at_us: when.
        kind: `cut`, `stall`, `pause`, `die`, `pause server`, `kill server` or `close`; `lose node`: the process that
            holds a node's items, which is the one that it concerns, dies; `resize`: that client's rank leaves the group
            that divides the queue of the ranks, and dies after a while, or comes to it.
        client: the number of the client that it concerns.
        for_us: how long it lasts; another process takes a dead one's place after it.
        other: to whom it is cut, or its connection stalls.
    """

    at_us: int
    kind: str
    client: int
    for_us: int
    other: int = SERVER_NUMBER


Step = Call | Fault


@dataclass(frozen=True, slots=True)
class Script:
    """One story.

    Attributes:
        seed: decides the delays too.
        num_clients: how many processes use the channel.
        maxsize: items per queue, 0 unbounded.
        credit_bytes: what a client may send to one queue unasked.
        total_bytes: what the channel may hold, 0 unbounded.
        plan: how the queue of the ranks is divided; None without ranks.
        producers: how many producers are counted; 0 for none.
        successor_us: how long a producer that failed may be succeeded.
        max_attempts: how often an item is given out on lease, 0 for any number.
        steps: in order of time.
        max_leased: how many items a client may have on lease, 0 for any number.
        tap: what the subscription is, which there is while it has members; None without.
        has_holders: large items stay on their producers' nodes.
        durable: the channel survives its process, and another one holds it after a while.
        survives: what a durable one is to survive: with it, its process dies.
        priority_wait_us: how long an item is passed over by those of a higher priority; None for ever.
        is_resized: those who divide the queue of the ranks are the ranks of a group that is resized.
        group_produces: the ranks of that group are the producers, instead of a number of them.
    """

    seed: int
    num_clients: int
    maxsize: int
    credit_bytes: int
    total_bytes: int
    plan: ShardPlan | None
    producers: int
    successor_us: int
    max_attempts: int
    steps: tuple[Step, ...]
    tap: TapTerms | None = None
    max_leased: int = 0
    has_holders: bool = False
    durable: bool = False
    survives: Survives = "machine"
    priority_wait_us: int | None = None
    is_resized: bool = False
    group_produces: bool = False

    @property
    def calls(self) -> list[Call]:
        """What users do."""
        return [step for step in self.steps if isinstance(step, Call)]

    @property
    def sole_consumers(self) -> set[str]:
        """The queues from which a single client gets, one call after the other: it sees them in order."""
        getters: dict[str, set[tuple[int, bool]]] = {}
        for step in self.calls:
            if step.kind == "lease":  # what comes back is not in order
                getters.setdefault(step.queue, set()).update(((-1, False), (-2, False)))
            if step.kind in ("get", "group", "peek", *BATCHES):
                getters.setdefault(step.queue, set()).add((step.client, step.blocking))
            if step.kind == "group":  # one passes those that are not complete
                getters[step.queue].add((step.client, False))
        getters.pop(TAP, None)  # with each subscription its numbers begin anew
        return {queue for queue, users in getters.items() if len(users) == 1 and next(iter(users))[1]}


def draw_script(seed: int) -> Script:
    """Return the story of a seed."""
    draw = Random(f"script {seed}")  # noqa: S311 - not for secrets
    num_clients = draw.randint(1, 6)
    calm = draw.random() < 0.15
    length_us = draw.choice((20_000, 200_000, 2_000_000))
    plan = _draw_plan(draw, num_clients) if draw.random() < 0.3 else None
    calls = _Calls(draw, num_clients, length_us, has_shards=plan is not None)
    steps: list[Step] = [calls.draw(number) for number in range(draw.choice((20, 60, 180)))]
    producers = draw.choice((0, 0, 1, 2, 3))
    steps += calls.draw_producers(len(steps), producers)
    for _ in range(0 if calm else draw.randint(1, 12)):
        steps.append(_draw_fault(draw, num_clients, length_us))
    steps.sort(key=lambda step: step.at_us)
    maxsize = draw.choice((0, 0, 1, 2, 5) if plan is None else (0, 0, 5))
    credit_bytes = draw.choice((200, 6_000, 200_000))
    total_bytes = draw.choice((0, 0, 120_000, 400_000))
    successor_us = draw.choice((0, 10_000, 1_000_000))
    durable, deaths = _draw_deaths(seed, length_us)
    steps = sorted([*steps, *deaths], key=lambda step: step.at_us)
    # What a subscription sees of items that are lost, its readers are told.
    may_tap = not _draws_holders(seed)
    tap, steps = _draw_tap(seed, steps, num_clients, length_us) if may_tap else (None, steps)
    script = Script(
        seed,
        num_clients,
        maxsize,
        credit_bytes,
        total_bytes,
        plan,
        producers,
        successor_us,
        *_draw_leases(seed, steps),
        tap,
        Random(f"bound of leases {seed}").choice((0, 0, 1, 3)),  # noqa: S311 - not for secrets
        durable=durable,
        survives=Random(f"machine {seed}").choice(("machine", "machine", "process")),  # noqa: S311 - not for secrets
        priority_wait_us=_draw_patience(seed),
    )
    resized = _with_group_producers(_with_resizes(script, length_us), calls)
    return _with_holders(resized, length_us)


def _with_resizes(script: Script, length_us: int) -> Script:
    """In some stories with ranks, their group is resized."""
    draw = Random(f"resizes {script.seed}")  # noqa: S311 - not for secrets
    if script.plan is None or draw.random() < 0.4:
        return script
    resizes = []
    for _ in range(draw.choice((1, 2, 4, 8))):
        drain_us = draw.choice((1_000, 50_000, 1_000_000))
        rank = draw.randrange(script.num_clients)
        resizes.append(Fault(draw.randrange(length_us), "resize", rank, drain_us))
    steps = sorted((*script.steps, *resizes), key=lambda step: step.at_us)
    return replace(script, steps=tuple(steps), is_resized=True)


def _with_group_producers(script: Script, calls: _Calls) -> Script:
    """In some stories with a group that is resized, its ranks are the producers."""
    draw = Random(f"group producers {script.seed}")  # noqa: S311 - not for secrets
    if not script.is_resized or draw.random() < 0.4:
        return script
    steps = [step for step in script.steps if not (isinstance(step, Call) and step.kind in ("join", "leave"))]
    first_number = 1 + max((step.number for step in script.calls), default=0)
    steps += calls.draw_ranks_that_produce(draw, first_number)
    steps.sort(key=lambda step: step.at_us)
    return replace(script, steps=tuple(steps), producers=0, group_produces=True)


def _draws_holders(seed: int) -> bool:
    return Random(f"holders {seed}").random() >= 0.6  # noqa: S311 - not for secrets


def _with_holders(script: Script, length_us: int) -> Script:
    """In some stories, large items stay on their producers' nodes, and what breaks there."""
    draw = Random(f"holders {script.seed}")  # noqa: S311 - not for secrets
    if draw.random() < 0.6 or script.durable:  # what is to outlive its process is with the channel
        return script
    faults = []
    for _ in range(draw.choice((0, 1, 2, 4))):
        kind = draw.choice(("lose node", "lose node", "cut", "stall", "pause"))
        holder = FIRST_HOLDER - draw.randrange(NUM_NODES)
        for_us = draw.choice((1_000, 1_000_000, 10_000_000, LONG_US))
        other = draw.choice((SERVER_NUMBER, draw.randrange(script.num_clients)))
        faults.append(Fault(draw.randrange(2 * length_us), kind, holder, for_us, other))
    steps = sorted((*script.steps, *faults), key=lambda step: step.at_us)
    return replace(script, steps=tuple(steps), has_holders=True)


def _draw_patience(seed: int) -> int | None:
    """How long an item is passed over."""
    draw = Random(f"patience {seed}")  # noqa: S311 - not for secrets
    return draw.choice((None, None, 0, 2_000, 100_000))


def _draw_deaths(seed: int, length_us: int) -> tuple[bool, list[Step]]:
    """Whether the channel is durable, and the deaths of its process, then."""
    draw = Random(f"survives {seed}")  # noqa: S311 - not for secrets
    if draw.random() >= 0.25:
        return False, []
    return True, [
        Fault(draw.randrange(length_us), "kill server", 0, draw.choice((1_000, 50_000, 1_000_000)))
        for _ in range(draw.randint(0, 4))
    ]


def _draw_tap(
    seed: int, steps: list[Step], num_clients: int, length_us: int
) -> tuple[TapTerms | None, list[Step]]:
    """In some stories, what a subscription is, and the steps with its members, and with reads of it for some gets."""
    draw = Random(f"taps {seed}")  # noqa: S311 - not for secrets
    if draw.random() < 0.2:
        return None, steps
    bounds = draw.choice((0, 0, 1, 3)), draw.choice((0, 0, 0, 120_000))
    tap = TapTerms(draw.choice((None, "q0", "q0")), *bounds)
    share = draw.choice((0.2, 0.5))
    told = [
        replace(step, queue=TAP)
        if isinstance(step, Call)
        and step.kind in ("get", "group", "peek", *BATCHES)
        and draw.random() < share
        else step
        for step in steps
    ]
    if draw.random() < 0.4:
        # Consumers die with what they have not looked at, and others have marked.
        told = [_marked(step) for step in told]
        told += [
            Fault(draw.randrange(length_us), "die", draw.randrange(num_clients), 1_000) for _ in range(8)
        ]
        reader = draw.randrange(num_clients)
        told += [Call(0, len(told), reader, "subscribe", TAP, 0, 0, None, blocking=True, drop="")]
        told += [
            Call(0, len(told) + more, reader, "get", TAP, 0, 0, None, blocking=False, drop="")
            for more in range(20)
        ]
    for _ in range(draw.randint(1, 6)):
        number, at_us = len(told), draw.randrange(length_us)
        client = draw.randrange(num_clients)
        drop = draw.choice(("", "", "", "begun", "later"))
        come = Call(at_us, number, client, "subscribe", TAP, 0, 0, None, draw.random() < 0.5, drop)
        later_us = min(length_us, at_us + draw.randrange(1 + length_us))
        go = replace(
            come,
            at_us=later_us,
            number=number + 1,
            kind="unsubscribe",
            turn=number,
            fails=draw.random() < 0.5,
        )
        told += [come, go] if draw.random() < 0.7 else [come]
    return tap, sorted(told, key=lambda step: step.at_us)


def _marked(step: Step) -> Step:
    """Large items, which readers of the subscription take at once and others leave in their handles."""
    if not isinstance(step, Call) or step.kind not in ("put", "get"):
        return step
    if step.kind == "put":
        return replace(step, size_bytes=100_000)
    return replace(step, blocking=step.queue == TAP, drop="", timeout_us=None)


def _draw_leases(seed: int, steps: list[Step]) -> tuple[int, tuple[Step, ...]]:
    """In some stories, how often an item may be given out, and the steps with leases instead of some gets."""
    draw = Random(f"leases {seed}")  # noqa: S311 - not for secrets
    share = draw.choice((0.0, 0.0, 0.3, 0.7, 1.0))
    ttl_us = draw.choice((30_000, 500_000, 20_000_000))
    told = [
        replace(
            step,
            kind="lease",
            ttl_us=ttl_us,
            limits=step.limits if step.kind == "get" else step.limits or NO_LIMITS,
        )
        if isinstance(step, Call) and step.kind in ("get", "batch") and draw.random() < share
        else step
        for step in steps
    ]
    return draw.choice((0, 0, 1, 3)), tuple(told)


def _draw_plan(draw: Random, num_clients: int) -> ShardPlan:
    weight, items = draw.choice(((None, None), (None, draw.randint(1, 4)), (draw.randint(1, 6), None)))
    num_shards = draw.randint(1, min(4, num_clients))
    return ShardPlan(num_shards, draw.choice(POLICIES), weight, items, equal_counts=draw.random() < 0.5)


class _Calls:
    """How this story's users behave."""

    def __init__(self, draw: Random, num_clients: int, length_us: int, *, has_shards: bool) -> None:
        self._draw = draw
        self._num_clients = num_clients
        self._length_us = length_us
        self._letter_share = draw.choice((0.0, 0.3, 0.5)) if num_clients > 1 else 0.0
        self._weights_share = draw.choice((0.0, 0.2, 0.4))
        # In some stories everything happens in bursts.
        self._step_us = draw.choice((1, length_us // 10))
        self._queues = [f"q{number}" for number in range(draw.randint(1, 3))]
        self._put_share = draw.choice((0.4, 0.5, 0.6)) + (0.25 if has_shards else 0.0)
        self._drop_share = draw.choice((0.0, 0.1, 0.3, 0.6))
        self._timeout_share = draw.choice((0.1, 0.4, 0.8))
        self._blocking_share = draw.choice((0.0, 0.5, 1.0))
        # Queues of odd stories belong to one consumer that gets one by one: what it sees is in order.
        sole = draw.random() < 0.4
        self._owner = {queue: draw.randrange(num_clients) if sole else None for queue in self._queues}
        self._priorities = draw.choice(((0,), (0,), (0, 0, 1), (0, 5, -1, 1)))
        # In some stories items belong together.
        self._groups = draw.choice(((None,), (None,), (None, "a", "b", "c")))
        self._group_share = 8 if "a" in self._groups else 0
        self._end_share = draw.choice((0.0, 0.0, 0.01, 0.04))
        self._flush_share = draw.choice((0.0, 0.05))
        self._shards_share = 0.6 if has_shards else 0.0

    def draw(self, number: int) -> Call:
        kind = self._draw.random()
        if kind < self._letter_share:
            return self._draw_letter(number)
        return self._draw_weights(number) if kind > 1 - self._weights_share else self._draw_item(number)

    def _draw_weights(self, number: int) -> Call:
        """A new version, or a reader of the newest."""
        draw = self._draw
        return Call(
            at_us=self._draw_time(self._draw),
            number=number,
            client=draw.randrange(self._num_clients),
            kind="publish" if draw.random() < 0.15 else "fetch",
            queue="weights",
            weight=0,
            size_bytes=0,
            timeout_us=draw.choice((400, 10_000, 1_000_000, None)),
            blocking=draw.random() < self._blocking_share,
            drop=self._draw_drop(),
        )

    def _draw_item(self, number: int) -> Call:
        """A call of the channel."""
        draw = self._draw
        queue = draw.choice(self._queues)
        kind = self._draw_kind()
        if kind in ("put", "end", "flush") and draw.random() < self._shards_share:
            queue = SHARDS
        owner = self._owner[queue] if kind in ("get", "group", "peek", *BATCHES) else None
        looks = kind in ("peek", "drain")
        return Call(
            at_us=self._draw_time(self._draw),
            number=number,
            client=draw.randrange(self._num_clients) if owner is None else owner,
            kind=kind,
            queue=queue,
            weight=self._draw_weight(kind),
            size_bytes=self._draw_size(),
            timeout_us=NOWAIT if looks else None if kind in ("end", "flush") else self._draw_timeout(),
            blocking=owner is not None or draw.random() < self._blocking_share,
            # What was looked at goes back.
            drop="delivered" if kind == "peek" else "" if kind in ("end", "flush") else self._draw_drop(),
            priority=draw.choice(self._priorities),
            limits=self._draw_limits(kind),
            group=draw.choice(self._groups),
        )

    def draw_producers(self, first_number: int, producers: int) -> list[Step]:
        """Processes that say when they begin to put, and when they are done; some come twice, or too late."""
        calls: list[Step] = []
        for _ in range(self._draw.randint(0, 2 * producers)):
            calls += self._draw_producer(self._draw, first_number + len(calls), None)
        return calls

    def draw_ranks_that_produce(self, draw: Random, first_number: int) -> list[Step]:
        """The same of ranks, each of its own process; most of them come, some twice."""
        calls: list[Step] = []
        for client in range(self._num_clients):
            for _ in range(draw.choice((0, 1, 1, 1, 1, 2))):
                calls += self._draw_producer(draw, first_number + len(calls), client)
        return calls

    def _draw_producer(self, draw: Random, number: int, client: int | None) -> list[Step]:
        client, at_us = draw.randrange(self._num_clients) if client is None else client, self._draw_time(draw)
        drop = draw.choice(("", "", "", "begun", "later"))
        blocking = draw.random() < 0.5
        join = Call(at_us, number, client, "join", "", 0, 0, None, blocking, drop)
        later_us = min(self._length_us, at_us + draw.randrange(1 + self._length_us))
        leave = replace(
            join, at_us=later_us, number=number + 1, kind="leave", turn=number, fails=draw.random() < 0.35
        )
        return [join, leave] if draw.random() < 0.9 else [join]

    def _draw_kind(self) -> str:
        draw = self._draw
        kind = draw.random()
        if kind < self._end_share:
            return "end"
        if kind < self._end_share + self._flush_share:
            return "flush"
        if draw.random() < self._put_share:
            return "put"
        return draw.choices(
            ("get", "batch", "peek", "drain", "group"), weights=(10, 8, 1, 1, self._group_share)
        )[0]

    def _draw_weight(self, kind: str) -> int:
        if kind == "group":
            return self._draw.randint(2, 3)
        if kind not in BATCHES:
            return self._draw.randint(0, 4)
        return 0 if kind == "drain" or self._draw.random() < 0.3 else self._draw.randint(1, 6)

    def _draw_limits(self, kind: str) -> Limits | None:
        draw = self._draw
        if kind == "drain":
            return Limits()
        if kind != "batch" or draw.random() < 0.4:
            return None
        min_items = draw.choice((1, 1, 2, 3))
        max_items = draw.choice((0, 0, min_items, min_items + 2))
        max_bytes = draw.choice((0, 0, 150, 10_000, 300_000))
        max_wait_s = draw.choice((None, None, 0.0, 0.001, 0.05))
        return Limits(min_items, max_items, max_bytes, max_wait_s, draw.choice(("", "", "alone", "raise")))

    def _draw_letter(self, number: int) -> Call:
        """A send or a recv."""
        draw = self._draw
        kind = "send" if draw.random() < 0.5 else "recv"
        topic = draw.choice(("ordered", "any"))
        client = draw.randrange(self._num_clients)
        return Call(
            at_us=self._draw_time(self._draw),
            number=number,
            client=client,
            kind=kind,
            queue=topic,
            weight=0,
            size_bytes=self._draw_size(),
            timeout_us=draw.choice((400, 10_000, 1_000_000, 20_000_000)),
            blocking=(kind == "recv" and topic == "ordered") or draw.random() < self._blocking_share,
            drop=self._draw_drop(),
            peer=(client + draw.randrange(1, self._num_clients)) % self._num_clients,
        )

    def _draw_time(self, draw: Random) -> int:
        return draw.randrange(self._length_us) // self._step_us * self._step_us

    def _draw_size(self) -> int:
        return self._draw.choice((10, 100, 5_000, 100_000, 300_000))

    def _draw_drop(self) -> str:
        if self._draw.random() >= self._drop_share:
            return ""
        return self._draw.choice(("begun", "delivered", "later", "cancel"))

    def _draw_timeout(self) -> int | None:
        if self._draw.random() >= self._timeout_share:
            return None
        return self._draw.choice((NOWAIT, 0, 400, 1_000, 10_000, 200_000, 3_000_000))


def _draw_fault(draw: Random, num_clients: int, length_us: int) -> Fault:
    kind = draw.choices(
        ("cut", "stall", "pause", "die", "pause server", "kill server", "close"),
        weights=(6, 4, 4, 5, 3, 0.7, 1),
    )[0]
    for_us = draw.choice((1_000, 50_000, 1_000_000, 10_000_000))
    if draw.random() < 0.1:
        for_us = LONG_US + draw.randrange(LONG_US)
    other = draw.choice((SERVER_NUMBER, draw.randrange(num_clients)))
    return Fault(draw.randrange(length_us), kind, draw.randrange(num_clients), for_us, other)
