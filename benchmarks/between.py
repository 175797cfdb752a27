"""Items between machines, through a channel that is held on another one: against bare sockets, in turn in one run.

The machines are network namespaces that a switch connects: the channel's, those of two producers, and those of two
consumers. A producer and a consumer are a pair, with a queue of its own. `node`: items stay on the producer's machine
and go straight to the consumer; `channel`: they go by way of the channel's machine. Bare: a TLS (or TCP) socket for
each pair, `sendall` and `recv_into` of warm memory. First each machine's link carries 50 MB/s in each direction; then
as much as the processors do.

    python benchmarks/between.py
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import socket
import ssl
import statistics
import sys
import time
from collections import deque
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from measure import KIB, MIB
from network import receive
from rlinf.testing.local import HeldHere, hold_items
from rlinf.testing.machines import Machine, MachineStar, MachinesUnavailable
from rlinf_scheduler.channel import Channel, Starter
from rlinf_scheduler.comm import ClusterSecret, Endpoint
from rlinf_scheduler.comm.transport.identity import ClusterTls
from rlinf_scheduler.session import Session, set_current

DEADLINE_S = 120.0
NUM_PAIRS = 2
LINK_BYTES_PER_S = 50_000_000
# size of an item, how many in a round for each pair, how many under way
WORKLOADS = ((64 * KIB, 600, 16), (256 * KIB, 400, 16), (MIB, 200, 8), (16 * MIB, 16, 3))
WARM_UP = 0.3


def join(
    secret: ClusterSecret, machine: Machine, name: str, home: Endpoint | None, *, encryption: bool
) -> Session:
    """This process's place in the job."""
    session = Session(secret, name, home=home, host=machine.address, tcp=True, encryption=encryption)
    session.provide(Starter, HeldHere(session))
    set_current(session)
    return session


def hold(pipe: Connection, machine: Machine, secret: ClusterSecret, home: Endpoint, encryption: bool) -> None:
    """The process that holds the items of the producers' machine."""
    machine.enter()
    hold_items(join(secret, machine, "holder:0", home, encryption=encryption))
    pipe.send("ready")
    pipe.recv()


def produce(
    pipe: Connection, machine: Machine, secret: ClusterSecret, home: Endpoint, encryption: bool, pair: int
) -> None:
    """One end of a pair: puts, or sends by a bare socket, whatever it is told to."""
    machine.enter()
    join(secret, machine, f"producer:{pair}", home, encryption=encryption)
    tls = ClusterTls(secret).client if encryption else None
    address = pipe.recv()
    bare = socket.create_connection(address, DEADLINE_S)
    bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    bare = tls.wrap_socket(bare) if tls is not None else bare
    pipe.send("ready")
    for name, size, count, window in iter(pipe.recv, None):
        item = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        if name is None:
            for _ in range(count):
                bare.sendall(item)
        else:
            put_all(Channel.connect(name), item, pair, count, window)


def put_all(channel: Channel, item: Any, pair: int, count: int, window: int) -> None:
    """Put an item so many times, up to `window` under way."""
    under_way: deque[Any] = deque()
    for _ in range(count):
        if len(under_way) == window:
            under_way.popleft().wait(DEADLINE_S)
        under_way.append(channel.put(item, queue_name=pair, async_op=True))
    for each in under_way:
        each.wait(DEADLINE_S)


def consume(
    pipe: Connection, machine: Machine, secret: ClusterSecret, home: Endpoint, encryption: bool, pair: int
) -> None:
    """The other end: gets, or receives; says when it has all."""
    machine.enter()
    join(secret, machine, f"consumer:{pair}", home, encryption=encryption)
    listener = socket.create_server((machine.address, 0))
    pipe.send(listener.getsockname())
    bare, _ = listener.accept()
    if encryption:
        tls: ssl.SSLContext = ClusterTls(secret).server
        bare = tls.wrap_socket(bare, server_side=True)
    memory = memoryview(bytearray(max(size for size, _, _ in WORKLOADS)))
    pipe.send("ready")
    for name, size, count, window in iter(pipe.recv, None):
        if name is None:
            for _ in range(count):
                receive(bare, memory[:size])
        else:
            get_all(Channel.connect(name), pair, count, window)
        pipe.send(time.monotonic())


def get_all(channel: Channel, pair: int, count: int, window: int) -> None:
    """Get so many items, up to `window` asked for at a time."""
    under_way = deque(channel.get(pair, async_op=True) for _ in range(min(window, count)))
    for number in range(count):
        under_way.popleft().wait(DEADLINE_S)
        if number + window < count:
            under_way.append(channel.get(pair, async_op=True))


class Bench:
    """The pairs, and the machines that they are on."""

    def __init__(self, star: MachineStar, stack: contextlib.ExitStack, *, encryption: bool) -> None:
        self.machines = star.machines
        self._context = multiprocessing.get_context("spawn")
        self._stack = stack
        self._secret = ClusterSecret.generate()
        self._encryption = encryption
        session = join(self._secret, star.machines[0], "driver", None, encryption=encryption)
        stack.callback(session.close)
        self._home = session.messenger.endpoint
        pairs = range(NUM_PAIRS)
        self._holders = [self._start(hold, 1 + pair) for pair in pairs]
        self.consumers = [self._start(consume, 1 + NUM_PAIRS + pair, pair) for pair in pairs]
        self.producers = [self._start(produce, 1 + pair, pair) for pair in pairs]
        for holder in self._holders:
            holder.recv()
        for producer, consumer in zip(self.producers, self.consumers, strict=True):
            producer.send(consumer.recv())
            consumer.recv()
            producer.recv()

    def _start(self, function: Any, on: int, *args: Any) -> Connection:
        here, there = self._context.Pipe()
        arguments = (there, self.machines[on], self._secret, self._home, self._encryption, *args)
        process = self._context.Process(target=function, args=arguments, daemon=True)
        process.start()
        there.close()
        self._stack.callback(process.join, DEADLINE_S)
        self._stack.callback(here.send, None)
        return here

    def seconds(self, name: str | None, size: int, count: int, window: int) -> float:
        """How long all pairs take, from the first item to the last, by a channel or (None) by bare sockets."""
        task = (name, size, count, window)
        began = time.monotonic()
        for each in (*self.consumers, *self.producers):
            each.send(task)
        return float(max(consumer.recv() for consumer in self.consumers) - began)


def report(bench: Bench, title: str, rounds: int, limit: int | None) -> None:
    """Print a table."""
    names = {holds: f"{holds}-{next(_numbers)}" for holds in ("node", "channel")}
    kept = [Channel.create(name, maxsize=64, holds=holds) for holds, name in names.items()]
    print(
        f"{title:26}{'bare, MB/s':>12}{'node':>8}{'ratio':>7}{'channel':>9}{'ratio':>7}"
        f"{'bytes an item that the channels machine sees: node':>54}{'channel':>12}"
    )
    for size, most, window in WORKLOADS:
        # A round of a second or so.
        count = most if limit is None else max(window, min(most, limit // size))
        times: dict[str, list[float]] = {"bare": [], "node": [], "channel": []}
        seen: dict[str, float] = {}
        for number in range(rounds + 1):
            for side in times:
                some = max(window, int(count * WARM_UP)) if number == 0 else count
                before = sum(bench.machines[0].traffic())
                took = bench.seconds(names.get(side), size, some, window)
                seen[side] = (sum(bench.machines[0].traffic()) - before) / (NUM_PAIRS * some)
                if number:
                    times[side].append(took)
        bare_s, node_s, channel_s = (statistics.median(each) for each in times.values())
        megabytes = NUM_PAIRS * size * count / 1e6
        name = f"{size // KIB} KiB" if size < MIB else f"{size // MIB} MiB"
        print(
            f"{name:26}{megabytes / bare_s:12.0f}{megabytes / node_s:8.0f}{bare_s / node_s:7.2f}"
            f"{megabytes / channel_s:9.0f}{bare_s / channel_s:7.2f}{seen['node']:54.0f}{seen['channel']:12.0f}"
        )
    for channel in kept:
        channel.delete()


_numbers = itertools.count()


def main() -> int:
    """Print a table for each kind of link."""
    rounds = 1 if "--quick" in sys.argv else 3
    for limit, link in ((LINK_BYTES_PER_S, "50 MB/s"), (None, "any")):
        try:
            star = MachineStar(1 + 2 * NUM_PAIRS, limit)
        except MachinesUnavailable as error:
            print(f"nothing is measured: {error}")
            return 0
        with star:
            for encryption, kind in ((True, "TLS"), (False, "TCP")):
                with star.machines[0].entered(), contextlib.ExitStack() as stack:
                    report(
                        Bench(star, stack, encryption=encryption), f"links of {link}, {kind}", rounds, limit
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
