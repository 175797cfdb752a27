"""What happens to the world from outside: calls of users and faults, each at its time; drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

NOWAIT = -1
SERVER_NUMBER = -2
# An obstacle that lasts so long ends sessions, or may.
LONG_US = 35_000_000


@dataclass(frozen=True, slots=True)
class Call:
    """A user calls a channel.

    Attributes:
        at_us: when.
        number: unique in a script; a put's number is also its item.
        client: the number of the client.
        kind: `put`, `get` or `batch` of a channel, `send` or `recv` of a mailbox, `publish` or `fetch` of weights.
        queue: the queue's name, or the topic.
        weight: of the item, or the batch's target.
        size_bytes: of the item.
        timeout_us: None without a deadline, NOWAIT without waiting.
        blocking: the user's thread begins its next call when this one has ended.
        drop: at which step the user leaves the call: `begun`, `delivered`, `later`, or never (empty);
            `cancel`: the user asks for its end, and waits for that.
        peer: the number of the process at the other end of `send` and `recv`.
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


@dataclass(frozen=True, slots=True)
class Fault:
    """Something breaks, or a channel is closed.

    Attributes:
        at_us: when.
        kind: `cut`, `stall`, `pause`, `die`, `pause server`, `kill server` or `close`.
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
        steps: in order of time.
    """

    seed: int
    num_clients: int
    maxsize: int
    credit_bytes: int
    steps: tuple[Step, ...]

    @property
    def calls(self) -> list[Call]:
        """What users do."""
        return [step for step in self.steps if isinstance(step, Call)]

    @property
    def sole_consumers(self) -> set[str]:
        """The queues from which a single client gets, one call after the other: it sees them in order."""
        getters: dict[str, set[tuple[int, bool]]] = {}
        for step in self.calls:
            if step.kind in ("get", "batch"):
                getters.setdefault(step.queue, set()).add((step.client, step.blocking))
        return {queue for queue, users in getters.items() if len(users) == 1 and next(iter(users))[1]}


def draw_script(seed: int) -> Script:
    """Return the story of a seed."""
    draw = Random(f"script {seed}")  # noqa: S311 - not for secrets
    num_clients = draw.randint(1, 6)
    calm = draw.random() < 0.15
    length_us = draw.choice((20_000, 200_000, 2_000_000))
    calls = _Calls(draw, num_clients, length_us)
    steps: list[Step] = [calls.draw(number) for number in range(draw.choice((20, 60, 180)))]
    for _ in range(0 if calm else draw.randint(1, 12)):
        steps.append(_draw_fault(draw, num_clients, length_us))
    steps.sort(key=lambda step: step.at_us)
    maxsize = draw.choice((0, 0, 1, 2, 5))
    return Script(seed, num_clients, maxsize, draw.choice((200, 6_000, 200_000)), tuple(steps))


class _Calls:
    """How this story's users behave."""

    def __init__(self, draw: Random, num_clients: int, length_us: int) -> None:
        self._draw = draw
        self._num_clients = num_clients
        self._length_us = length_us
        self._letter_share = draw.choice((0.0, 0.3, 0.5)) if num_clients > 1 else 0.0
        self._weights_share = draw.choice((0.0, 0.2, 0.4))
        # In some stories everything happens in bursts.
        self._step_us = draw.choice((1, length_us // 10))
        self._queues = [f"q{number}" for number in range(draw.randint(1, 3))]
        self._put_share = draw.choice((0.4, 0.5, 0.6))
        self._drop_share = draw.choice((0.0, 0.1, 0.3, 0.6))
        self._timeout_share = draw.choice((0.1, 0.4, 0.8))
        self._blocking_share = draw.choice((0.0, 0.5, 1.0))
        # Queues of odd stories belong to one consumer that gets one by one: what it sees is in order.
        sole = draw.random() < 0.4
        self._owner = {queue: draw.randrange(num_clients) if sole else None for queue in self._queues}

    def draw(self, number: int) -> Call:
        kind = self._draw.random()
        if kind < self._letter_share:
            return self._draw_letter(number)
        return self._draw_weights(number) if kind > 1 - self._weights_share else self._draw_item(number)

    def _draw_weights(self, number: int) -> Call:
        """A new version, or a reader of the newest."""
        draw = self._draw
        return Call(
            at_us=self._draw_time(),
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
        kind = "put" if draw.random() < self._put_share else draw.choice(("get", "get", "batch"))
        owner = None if kind == "put" else self._owner[queue]
        return Call(
            at_us=self._draw_time(),
            number=number,
            client=draw.randrange(self._num_clients) if owner is None else owner,
            kind=kind,
            queue=queue,
            weight=draw.randint(1, 6) if kind == "batch" else draw.randint(0, 4),
            size_bytes=self._draw_size(),
            timeout_us=self._draw_timeout(),
            blocking=owner is not None or draw.random() < self._blocking_share,
            drop=self._draw_drop(),
        )

    def _draw_letter(self, number: int) -> Call:
        """A send or a recv."""
        draw = self._draw
        kind = "send" if draw.random() < 0.5 else "recv"
        topic = draw.choice(("ordered", "any"))
        client = draw.randrange(self._num_clients)
        return Call(
            at_us=self._draw_time(),
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

    def _draw_time(self) -> int:
        return self._draw.randrange(self._length_us) // self._step_us * self._step_us

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
