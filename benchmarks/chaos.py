"""Producers and consumers at full speed, while random ones are killed and stopped; every item is accounted for.

Each producer writes down the numbers whose put has returned, each consumer those that it has before it acknowledges
them. At the end every number that was put was consumed; one that was consumed more often had come back, because its
consumer was killed, or was stopped for longer than its lease lasts. A put that was cut off by a kill may have been made
or not. With `--durable` the process that holds the channel is killed and stopped too, and another one takes its place:
nothing else changes. The memory and the descriptors of the channel's process are the same in the second half as in the
first.

    python benchmarks/chaos.py [--minutes 5] [--seed 1] [--durable]

Exits with 1 if an item was lost, or one came twice to consumers that live.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime
from rlinf_scheduler.errors import ChannelClosed, ChannelTimeout, LeaseExpired
from rlinf_scheduler.session import set_current

NUM_PRODUCERS, NUM_CONSUMERS = 3, 3
NAME = "chaos"
MAXSIZE = 64
# A consumer that is stopped for longer loses its lease.
TTL_S = 1.0
# One in so many items is large: it lies in its producer's shared memory.
LARGE_EVERY, LARGE_BYTES = 20, 128 << 10
# Something happens to somebody about so often.
EVERY_S = 0.25
DRAIN_S = 60.0
# After so long an interrupted one is interrupted once more, in seconds.
AGAIN_S = 10.0
Number = tuple[int, int]


def hold(address: Any, pipe: Any, journal: str | None) -> None:
    """Hold the channel."""
    with LocalRuntime(address, own_name="holder"):
        Channel.create(NAME, maxsize=MAXSIZE, durable=journal)
        pipe.send("ready")
        pipe.recv()


def quietly(work: Callable[..., None], folder: str, *args: Any) -> None:
    """Work until it is done or interrupted; what Python says of that goes to a file."""
    os.dup2(os.open(f"{folder}/said", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
    try:
        work(*args)
    except KeyboardInterrupt:
        return


def produce(address: Any, life: int, path: str, over: Any) -> None:
    """Put numbered items, and write down each number once its put has returned."""
    with LocalRuntime(address, own_name=f"producer:{life}"), Path(path).open("ab", buffering=0) as log:
        channel = Channel.connect(NAME, timeout_s=DRAIN_S)
        for number in itertools.count():
            if over.is_set():
                return
            size = LARGE_BYTES if number % LARGE_EVERY == 0 else 16
            log.write(f"begun {life} {number}\n".encode())
            channel.put((life, number, bytes(size)))
            log.write(f"put {life} {number}\n".encode())


def consume(address: Any, life: int, path: str) -> None:
    """Take items on lease; write down each number before it is acknowledged, and how often it was given out."""
    with LocalRuntime(address, own_name=f"consumer:{life}"), Path(path).open("ab", buffering=0) as log:
        channel = Channel.connect(NAME, timeout_s=DRAIN_S)
        while True:
            try:
                with channel.lease(ttl_s=TTL_S, timeout_s=5.0) as lease:
                    producer, number, _ = lease.item
                    log.write(f"got {producer} {number} {lease.attempt}\n".encode())
            except (LeaseExpired, ChannelTimeout):
                continue
            except ChannelClosed:
                return


@dataclass
class Outcome:
    """What became of the items.

    Attributes:
        num_put: puts that returned.
        num_unsure: puts that a kill cut off.
        num_got: how often items were given out.
        num_again: of these, how often not for the first time.
        lost: numbers that were put and never consumed.
        strange: numbers that were consumed and never put, or twice as a first attempt by consumers that were not
            interrupted.
        events: how often what happened.
        memory: (MiB, descriptors) of the channel's process, about once a second.
    """

    num_put: int = 0
    num_unsure: int = 0
    num_got: int = 0
    num_again: int = 0
    lost: list[Number] = field(default_factory=list)
    strange: list[Number] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[float, int]] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether every item is accounted for."""
        return not self.lost and not self.strange and self.num_put > 0

    def growth(self) -> tuple[float, int]:
        """By how much memory (MiB) and descriptors are more at most in the second half than in the first."""
        half = len(self.memory) // 2
        first, second = self.memory[:half], self.memory[half:]
        if not first:
            return 0.0, 0
        mib = max(each[0] for each in second) - max(each[0] for each in first)
        return mib, max(each[1] for each in second) - max(each[1] for each in first)


class Chaos:
    """The processes, and what happens to them.

    Args:
        folder: for what they write down.
        seed: of what happens when.
        durable: the channel survives its process, to which something happens too.
    """

    def __init__(self, folder: Path, seed: int, *, durable: bool = False) -> None:
        self._folder = folder
        self._dice = random.Random(seed)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["rlinf.testing", "rlinf_scheduler.channel"])
        self._over = self._context.Event()
        self._runtime = LocalRuntime()
        set_current(self._runtime)
        self._lives = itertools.count()
        self._living: dict[Any, str] = {}
        self._interrupted: set[str] = set()
        self._stopped: dict[Any, float] = {}
        self._outcome = Outcome()
        self._journal = str(folder / "journal") if durable else None
        self._hold()
        self._pipe.recv()

    def run(self, seconds: float, *, including: str = "") -> Outcome:
        """Let it go on for a while, and until `including` has happened; then let the consumers have what is left."""
        try:
            for _ in range(NUM_PRODUCERS):
                self._start("producer")
            for _ in range(NUM_CONSUMERS):
                self._start("consumer")
            self._let_begin()
            self._rage(time.monotonic() + seconds, including)
            self._finish()
        finally:
            for process in (*self._living, self._holder):
                process.kill()
                process.join()
            self._runtime.close()
        self._account()
        return self._outcome

    def _hold(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        args = (str(self._folder), self._runtime.address, theirs, self._journal)
        self._holder = self._context.Process(target=quietly, args=(hold, *args), name="holder", daemon=True)
        self._holder.start()

    def _start(self, kind: str) -> None:
        life = next(self._lives)
        name = f"{kind}-{life}"
        path = str(self._folder / name)
        args = (self._runtime.address, life, path)
        work: tuple[Any, ...] = (produce, str(self._folder), *args, self._over)
        if kind == "consumer":
            work = (consume, str(self._folder), *args)
        process = self._context.Process(target=quietly, args=work, name=name, daemon=True)
        process.start()
        self._living[process] = kind

    def _rage(self, until: float, including: str) -> None:
        next_look = 0.0
        while (now := time.monotonic()) < until or (including and not self._outcome.events[including]):
            time.sleep(self._dice.uniform(0, 2 * EVERY_S))
            self._wake(now)
            holders = [self._holder] if self._journal is not None else []
            victim = self._dice.choice([*self._living, *holders])
            what = self._dice.choice(["kill", "stop", "stop", "interrupt"])
            if victim is self._holder:
                what = self._happen_to_holder(what, now)
            elif what == "kill" or (what == "interrupt" and not self._hears(victim)):
                what = "kill"
                victim.kill()
                victim.join()
                self._stopped.pop(victim, None)
                self._start(self._living.pop(victim))
            elif what == "stop":
                os.kill(victim.pid, signal.SIGSTOP)
                self._stopped.setdefault(victim, now + self._dice.uniform(0, 3 * TTL_S))
            else:
                os.kill(victim.pid, signal.SIGINT)
                self._let_end(victim)
                self._interrupted.add(victim.name)
                self._start(self._living.pop(victim))
            self._outcome.events[what] += 1
            if now >= next_look:
                next_look = now + 1.0
                self._outcome.memory.append(_memory_of(self._holder.pid))

    def _let_begin(self) -> None:
        """Wait until a producer has put and a consumer has taken: there is nothing to lose before."""
        deadline = time.monotonic() + DRAIN_S
        while not self._has_written("producer", "put") or not self._has_written("consumer", "got"):
            if time.monotonic() > deadline:
                raise ChannelTimeout(f"no item has been put and taken after {DRAIN_S:g} s")
            time.sleep(0.02)

    def _has_written(self, kind: str, what: str) -> bool:
        return any(f"{what} " in each.read_text() for each in self._folder.glob(f"{kind}-*"))

    def _let_end(self, victim: Any) -> None:
        """Wait for one that was interrupted; it may wait for one that is stopped, which goes on in its time.

        Python drops an interruption that comes within a finalizer: people press Ctrl-C again.
        """
        deadline = time.monotonic() + DRAIN_S
        again = time.monotonic() + AGAIN_S
        while victim.is_alive():
            now = time.monotonic()
            self._wake(now)
            if now > deadline:
                raise ChannelTimeout(f"{victim.name} goes on {DRAIN_S:g} s after it was interrupted")
            if now > again and not self._stopped:
                os.kill(victim.pid, signal.SIGINT)
                self._outcome.events["interrupt again"] += 1
                again = now + AGAIN_S
            victim.join(0.1)

    def _hears(self, victim: Any) -> bool:
        """Whether a process can be interrupted: it runs, and has begun its work."""
        return victim not in self._stopped and (self._folder / victim.name).exists()

    def _happen_to_holder(self, what: str, now: float) -> str:
        if what == "stop":
            os.kill(self._holder.pid, signal.SIGSTOP)
            self._stopped.setdefault(self._holder, now + self._dice.uniform(0, TTL_S))
            return "stop the channel"
        self._holder.kill()
        self._holder.join()
        self._stopped.pop(self._holder, None)
        self._hold()
        return "kill the channel"

    def _wake(self, now: float) -> None:
        for process, until in list(self._stopped.items()):
            if now >= until:
                os.kill(process.pid, signal.SIGCONT)
                del self._stopped[process]

    def _finish(self) -> None:
        """No more puts; what is there is consumed."""
        self._over.set()
        self._wake(float("inf"))
        for process, kind in list(self._living.items()):
            if kind == "producer":
                process.join(DRAIN_S)
        channel = Channel.connect(NAME)
        channel.close()
        for process, kind in self._living.items():
            if kind == "consumer":
                process.join(DRAIN_S)

    def _account(self) -> None:
        found = self._outcome
        begun: set[Number] = set()
        put: set[Number] = set()
        got: Counter[Number] = Counter()
        first: Counter[Number] = Counter()
        for path in self._folder.glob("*-*"):
            lines = path.read_text().splitlines()
            if path.name in self._interrupted and lines and lines[-1].startswith("got"):
                # An interruption says nothing about its consumer's item: it comes back as if never given out.
                lines[-1] = lines[-1].rpartition(" ")[0] + " 0"
            for line in lines:
                what, *rest = line.split()
                number = int(rest[0]), int(rest[1])
                if what == "begun":
                    begun.add(number)
                elif what == "put":
                    put.add(number)
                else:
                    got[number] += 1
                    first[number] += rest[2] == "1"
        found.num_put, found.num_unsure = len(put), len(begun - put)
        found.num_got, found.num_again = sum(got.values()), sum(got.values()) - len(got)
        found.lost = sorted(put - set(got))
        found.strange = sorted({*(set(got) - begun), *(each for each in first if first[each] > 1)})


def _memory_of(pid: int) -> tuple[float, int]:
    """The memory of its own that a process has, in MiB, and its descriptors."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (anonymous,) = [int(line.split()[1]) for line in lines if line.startswith("RssAnon")]
    return anonymous / 1024, len(os.listdir(f"/proc/{pid}/fd"))


def report(outcome: Outcome, seconds: float) -> str:
    """It in words."""
    events = ", ".join(f"{count} times {what}" for what, count in sorted(outcome.events.items()))
    mib, descriptors = outcome.growth()
    return "\n".join(
        [
            f"{seconds:.0f} s, {events}",
            f"{outcome.num_put:,} items put, {outcome.num_unsure} puts cut off; given out {outcome.num_got:,} times, "
            f"{outcome.num_again} of them again",
            f"lost: {outcome.lost[:5] or 'none'}; strange: {outcome.strange[:5] or 'none'}",
            f"the channel's process: {mib:+.1f} MiB and {descriptors:+d} descriptors from the first half to the second",
        ]
    )


def main() -> None:
    """Let it happen, and say what became of the items."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="of what happens when")
    parser.add_argument("--durable", action="store_true", help="kill the channel's own process too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(Path(folder), options.seed, durable=options.durable)
        outcome = chaos.run(60 * options.minutes)
    print(report(outcome, 60 * options.minutes))
    sys.exit(0 if outcome.good else 1)


if __name__ == "__main__":
    main()
