"""The job of `fleet_chaos.py`: groups, exchanges, channels and devices on all hosts; how each wait ends is noted."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlinf.scheduler import (
    Channel,
    Cluster,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Worker,
    WorkerGroup,
)
from rlinf_scheduler.errors import SchedulerError

UNREACHABLE_AFTER_S = 10.0
UNRESPONSIVE_AFTER_S = 15.0
# Longer than it takes until somebody is given up, so that nothing ends at its deadline that can end by its cause.
CALL_S, LAUNCH_S = 30.0, 60.0
SHORT_S = 2.0
NUM_ITEMS = 20
MOST_RANKS = 5
# A deadline ends late by a tenth of itself; and this machine is busy.
LATE_SHARE, BUSY_S = 0.1, 5.0
# What an error has to name, if it is to say why.
CAUSES = {
    "node": r"node (\d+ \([^)]*\)|\S+ is gone)( is gone)?: |node \S+ does not answer",
    "link": r"unreachable for \d|stuck for \d",
    "process": r"nothing heard for|nothing listens|process \d+ on node|its process|killed|left the job|said goodbye",
    "deadline": r"after \d+(\.\d+)? s",
    "ended": r"was terminated|closed|there already|there is no group",
}
# Of Ray's, which do not know.
GUESSES = re.compile("temporarily unavailable|may or may not")


class Rank(Worker):
    """Adds, and trades with the other ranks of its group."""

    def add(self, number: int) -> int:
        """After a while."""
        time.sleep(number % 3 / 10)
        return number + self.rank

    def trade(self, number: int) -> Any:
        """Send to the next rank, and receive from the one before."""
        following, before = (self.rank + 1) % self.world_size, (self.rank - 1) % self.world_size
        sending = self.send(
            (number, self.rank), self.address.group, following, async_op=True, timeout_s=CALL_S
        )
        item = self.recv(self.address.group, before, timeout_s=CALL_S)
        sending.wait()
        return item == (number, before)


class Ledger:
    """How each wait ended."""

    def __init__(self) -> None:
        self.answered: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.longest_s = 0.0
        self._lock = threading.Lock()

    def wait(self, kind: str, limit_s: float, what: Callable[[], Any], right: Any = None) -> Any:
        """What `what` gives, within `limit_s` seconds and as expected (None: whatever it is); None if it failed."""
        began = time.monotonic()
        wrong, error, value = "", None, None
        try:
            value = what()
        except SchedulerError as failure:
            error = failure
            wrong = _why_wrong(failure)
        except Exception as failure:  # noqa: BLE001 - it is none that should be raised
            wrong = f"raised {failure!r}"
        took_s = time.monotonic() - began
        if error is None and not wrong and right is not None and value != right:
            wrong = f"gave {value!r} instead of {right!r}"
        if took_s > limit_s * (1 + LATE_SHARE) + BUSY_S:
            wrong = f"took {took_s:.1f} s of {limit_s:.0f} s; {wrong or error or 'answered'}"
        with self._lock:
            self.longest_s = max(self.longest_s, took_s - limit_s)
            if wrong:
                self.wrong.append(f"{time.strftime('%H:%M:%S')} {kind} {wrong}")
            elif error is not None:
                self.errors[f"{kind}: {type(error).__name__} ({_cause_of(error)})"] += 1
                print(time.strftime("%H:%M:%S"), kind, type(error).__name__, error, flush=True)
            else:
                self.answered[kind] += 1
        return None if wrong or error is not None else (True if value is None else value)


def _cause_of(error: SchedulerError) -> str:
    return next((name for name, pattern in CAUSES.items() if re.search(pattern, str(error))), "")


def _why_wrong(error: SchedulerError) -> str:
    if not _cause_of(error):
        return f"names no cause: {type(error).__name__}: {error}"
    return f"guesses: {error}" if GUESSES.search(str(error)) else ""


class Job:
    """Users of a cluster, each on a thread of its own, until the time is over.

    Args:
        cluster: theirs.
        seconds: for how long.
    """

    def __init__(self, cluster: Cluster, seconds: float) -> None:
        self.ledger = Ledger()
        self._cluster = cluster
        self._until = time.monotonic() + seconds
        self._numbers = itertools.count()

    def run(self) -> None:
        """Until the time is over, and all are done."""
        users = (self.call, self.trade, self.put_and_get, self.use_devices, self.resize, self.refresh)
        threads = [threading.Thread(target=user, name=user.__name__) for user in users]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @property
    def _goes_on(self) -> bool:
        return time.monotonic() < self._until

    def _nodes(self) -> list[int]:
        return [rank for rank in range(self._cluster.num_nodes) if rank not in self._cluster.lost_nodes]

    def _launched(self, kind: str, strategy: Any) -> WorkerGroup[Rank] | None:
        name = f"{kind}-{next(self._numbers)}"
        builder = Rank.create_group()
        launch = lambda: builder.launch(  # noqa: E731
            self._cluster,
            strategy,
            name=name,
            launch_timeout_s=LAUNCH_S,
            unresponsive_after_s=UNRESPONSIVE_AFTER_S,
        )
        return self.ledger.wait("launch", LAUNCH_S, launch)

    def _end(self, group: WorkerGroup[Rank]) -> None:
        self.ledger.wait("terminate", CALL_S, group.terminate)

    def call(self) -> None:
        """Calls of a group on all nodes, some with a short deadline."""
        while self._goes_on:
            group = self._launched("calls", NodePlacementStrategy(self._nodes()))
            for number in itertools.count():
                if group is None or not self._goes_on:
                    break
                right = [number + rank for rank in range(group.world_size)]
                if number % 5 == 4:
                    self.ledger.wait(
                        "short call", SHORT_S, lambda g=group, n=number: g.add(n).wait(SHORT_S), right
                    )
                elif not self.ledger.wait(
                    "call", CALL_S, lambda g=group, n=number: g.add(n).wait(CALL_S), right
                ):
                    break
            if group is not None:
                self._end(group)

    def trade(self) -> None:
        """Ranks that send to each other in a ring."""
        while self._goes_on:
            group = self._launched("ring", NodePlacementStrategy(self._nodes()))
            for number in itertools.count():
                if group is None or not self._goes_on:
                    break
                right = [True] * group.world_size
                done = self.ledger.wait(
                    "trade", CALL_S, lambda g=group, n=number: g.trade(n).wait(CALL_S), right
                )
                if not done:
                    break
            if group is not None:
                self._end(group)

    def put_and_get(self) -> None:
        """A channel beside a rank of one node after the other: what was put comes out, once and in order."""
        for node in itertools.cycle((2, 1, 0)):
            if not self._goes_on:
                return
            if node not in self._nodes():
                continue
            group = self._launched("beside", NodePlacementStrategy([node]))
            if group is None:
                continue
            name = f"items-{next(self._numbers)}"
            channel = self.ledger.wait(
                "create", CALL_S + 90, lambda n=name, g=group: Channel.create(n, group_affinity=g.name)
            )
            for _ in range(20):
                if channel is None or not self._goes_on:
                    break
                if not self.ledger.wait(
                    "items", CALL_S, lambda c=channel: _through(c), list(range(NUM_ITEMS))
                ):
                    break
            if channel is not None:
                self.ledger.wait("delete", CALL_S, channel.delete)
            self._end(group)

    def use_devices(self) -> None:
        """Groups that hold accelerators, launched and ended."""
        while self._goes_on:
            nodes = self._nodes()
            node = nodes[next(self._numbers) % len(nodes)]
            group = self._launched("devices", PackedPlacementStrategy(2 * node, 2 * node + 1))
            if group is None:
                continue
            self.ledger.wait("call", CALL_S, lambda g=group: g.add(1).wait(CALL_S), [1, 2])
            self._end(group)

    def resize(self) -> None:
        """A group that grows and shrinks: each call goes to the ranks that there are, and no number comes twice."""
        while self._goes_on:
            group = self._launched("resized", NodePlacementStrategy(self._nodes()))
            given = set() if group is None else {*group.ranks}
            for number in itertools.count():
                if group is None or not self._goes_on:
                    break
                right = [number + rank for rank in group.ranks]
                if not self.ledger.wait(
                    "call", CALL_S, lambda g=group, n=number: g.add(n).wait(CALL_S), right
                ):
                    break
                if group.world_size > MOST_RANKS - number % MOST_RANKS:
                    drained = lambda g=group: g.shrink(1, drain_s=SHORT_S)  # noqa: E731
                    done = self.ledger.wait("shrink", CALL_S, drained, group.ranks[-1:])
                else:
                    grown = lambda g=group: g.grow(1, timeout_s=LAUNCH_S)  # noqa: E731
                    done = self.ledger.wait("grow", LAUNCH_S, grown)
                    if done and given.intersection(done):
                        self.ledger.wrong.append(f"grow gave {done}, and {sorted(given)} were given before")
                    given.update(done or ())
                if not done:
                    break
            if group is not None:
                self._end(group)

    def refresh(self) -> None:
        """Nodes that come back are taken in."""
        while self._goes_on:
            time.sleep(3)
            self.ledger.wait("refresh", CALL_S, lambda: self._cluster.refresh(timeout_s=CALL_S))


def _through(channel: Channel) -> list[int]:
    puts = [channel.put(number, async_op=True, timeout_s=CALL_S) for number in range(NUM_ITEMS)]
    got = [channel.get(timeout_s=CALL_S) for _ in range(NUM_ITEMS)]
    for put in puts:
        put.wait(CALL_S)
    return got


def main() -> None:
    """Open a cluster, let the users go, and write down how all of it ended."""
    seconds, path = float(sys.argv[1]), Path(sys.argv[2])
    cluster = Cluster({"num_nodes": 3, "unreachable_after_s": UNREACHABLE_AFTER_S})
    events: Counter[str] = Counter()
    cluster.subscribe(lambda event: events.update([type(event).__name__]))
    job = Job(cluster, seconds)
    path.with_suffix(".ready").write_text(str(os.getpid()))
    job.run()
    job.ledger.wait("close", CALL_S, cluster.close)
    ledger = job.ledger
    found = {
        "answered": ledger.answered,
        "errors": ledger.errors,
        "wrong": ledger.wrong,
        "longest_s": ledger.longest_s,
        "events": events,
    }
    path.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
