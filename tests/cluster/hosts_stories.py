"""Jobs on three hosts of which this is one; whoever started the program does to the hosts what it asks for."""

import json
import os
import signal
import sys
import threading
import time

import numpy as np

from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy, Worker

DEADLINE_S = 60.0
UNREACHABLE_AFTER_S = 24.0
NUM_ITEMS = 200
NUM_LARGE = 8
LARGE_BYTES = 4 << 20
NUM_LEFT = 2
MISTAKE = "the program ends by an error of its own"


class Rank(Worker):
    """Trades with other ranks, and waits for what never comes."""

    def where(self):
        """Its process."""
        return os.getpid()

    def host(self):
        """The address of its node."""
        return self.info.node_ip

    def send_to(self, rank, item):
        """Send it to another rank of the group."""
        self.send(item, "all", rank, timeout_s=DEADLINE_S)

    def recv_from(self, group, rank):
        """An item of another rank; or how the wait for it ends."""
        try:
            return self.recv(group, rank, timeout_s=DEADLINE_S)
        except Exception as error:  # noqa: BLE001 - its text is what is looked at
            return str(error)

    def put_large(self, name, count):
        """Put items of `LARGE_BYTES` into a channel."""
        channel = Channel.connect(name)
        for number in range(count):
            channel.put(np.full(LARGE_BYTES, number, np.uint8), timeout_s=DEADLINE_S)

    def take_large(self, name, count):
        """Of what was taken from a channel, what each is filled with."""
        channel = Channel.connect(name)
        items = [channel.get(timeout_s=DEADLINE_S) for _ in range(count)]
        return [sorted(set(item.tolist())) for item in items]

    def hang(self):
        """It takes longer than anybody waits."""
        threading.Event().wait(10 * DEADLINE_S)


def ask(what, *arguments):
    """Have something done to the hosts."""
    sys.stdout.write(json.dumps([what, *arguments]) + "\n")
    sys.stdout.flush()
    assert sys.stdin.readline()


def launch(cluster, name, *nodes, **options):
    """A rank on each of these nodes."""
    return Rank.create_group().launch(cluster, NodePlacementStrategy(list(nodes)), name=name, **options)


class Heard:
    """The events of a job."""

    def __init__(self, cluster):
        self.events = []
        self._more = threading.Condition()
        cluster.subscribe(self._note)

    def _note(self, event):
        with self._more:
            self.events.append(event)
            self._more.notify_all()

    def wait_for(self, kind, *nodes):
        """Wait until it was told of all these nodes; how each was."""

        def told():
            return {e.node_rank: e for e in self._of(kind) if e.node_rank in nodes}

        self._wait(kind, lambda: len(told()) == len(nodes))
        return told()

    def wait_for_one(self, kind):
        """The first event of a kind."""
        self._wait(kind, lambda: self._of(kind))
        return self._of(kind)[0]

    def _of(self, kind):
        return [event for event in self.events if type(event).__name__ == kind]

    def _wait(self, kind, is_there):
        with self._more:
            assert self._more.wait_for(is_there, DEADLINE_S), (kind, self.events)


class Waits:
    """How waits end, and how long after a fault."""

    def __init__(self):
        self.began = time.monotonic()
        self.ends = {}

    def end(self, name, wait, *arguments, **options):
        """The result, or the type and text of what was raised, and when."""
        try:
            result = ["", wait(*arguments, **options)]
        except Exception as error:  # noqa: BLE001 - its text is what is looked at
            result = [type(error).__name__, str(error)]
        self.ends[name] = [time.monotonic() - self.began, *result]


def cut_and_mend(cluster, heard, group, seen):
    """The cable of one host is pulled, and what goes to the other one is lost on the way; then all is well again."""
    channel = Channel.create("items", group_affinity="all", group_rank_affinity=2)
    puts = [channel.put(number, async_op=True) for number in range(NUM_ITEMS // 2)]
    ask("unplug", 2)
    ask("mute", 0, 1)
    waits = Waits()
    puts += [channel.put(number, async_op=True) for number in range(NUM_ITEMS // 2, NUM_ITEMS)]
    calls = group.where()
    sending, receiving = group.execute_on(0).send_to(1, "through"), group.execute_on(1).recv_from("all", 0)
    told = heard.wait_for("NodeUnresponsive", 1, 2)
    seen["told"] = {rank: [time.monotonic() - waits.began, event.reason] for rank, event in told.items()}
    ask("plug in", 2)
    ask("unmute", 0, 1)
    waits.end("calls", calls.wait, DEADLINE_S)
    waits.end("send", sending.wait, DEADLINE_S)
    waits.end("recv", receiving.wait, DEADLINE_S)
    for put in puts:
        put.wait(DEADLINE_S)
    waits.end("items", lambda: [channel.get(timeout_s=DEADLINE_S) for _ in range(NUM_ITEMS)])
    heard.wait_for("NodeResponsive", 1, 2)
    seen["mended"] = waits.ends | {"lost": sorted(cluster.lost_nodes)}


def hold_where_it_was_made(cluster, group, seen):
    """Large items go from the third host to the second, by a channel on the first; their producer dies in between."""
    with cluster.starting():
        Channel.create("held")
        producer = launch(cluster, "producer", 2, on_failure="ignore")
    [pid] = producer.where().wait(DEADLINE_S)
    # What processes need to find each other is not counted.
    producer.put_large("held", 1).wait(DEADLINE_S)
    consumer = group.execute_on(1)
    first = consumer.take_large("held", 1).wait(DEADLINE_S)[0]
    ask("note traffic")
    producer.put_large("held", NUM_LARGE).wait(DEADLINE_S)
    hanging = producer.hang()
    os.kill(pid, signal.SIGKILL)
    waits = Waits()
    waits.end("producer", hanging.wait, DEADLINE_S)
    taken = consumer.take_large("held", NUM_LARGE - NUM_LEFT).wait(DEADLINE_S)[0]
    ask("note traffic")
    seen["held"] = waits.ends | {"taken": first + taken, "left": Channel.connect("held").qsize()}


def lose_two(cluster, heard, group, seen):
    """One host loses its power, the raylet of the other one is stopped."""
    beside = launch(cluster, "beside", 2)
    channel = Channel.connect("items")
    getting, calling, its_own = channel.get(async_op=True), group.hang(), beside.hang()
    receiving = group.execute_on(0).recv_from("beside", 0)
    ask("lose power", 2)
    ask("stop raylet", 1)
    waits = Waits()
    for name, handle in (("call", calling), ("its own", its_own), ("get", getting), ("recv", receiving)):
        waits.end(name, handle.wait, DEADLINE_S)
    heard.wait_for("NodeLost", 1, 2)
    waits.end("both", lambda: sorted(cluster.lost_nodes.items()))
    waits.began = time.monotonic()
    waits.end("later call", lambda: beside.where().wait(DEADLINE_S))
    waits.end("launch", lambda: launch(cluster, "late", 2))
    waits.end("its name", lambda: Channel.create("items").put("anew"))
    waits.end("held", Channel.connect("held").get, timeout_s=DEADLINE_S)
    seen["gone"] = waits.ends


def use_what_is_back(cluster, group, seen):
    """The raylet goes on, and the node can be used again."""
    group.terminate()
    ask("go on, raylet", 1)
    cluster.refresh(timeout_s=DEADLINE_S)
    seen["lost after"] = sorted(cluster.lost_nodes)
    seen["back"] = len(launch(cluster, "back", 0, 1).where().wait(DEADLINE_S))


def first(seen):
    """A job that sees a node join, links that are cut, and hosts that are gone."""
    with Cluster({"num_nodes": 2, "unreachable_after_s": UNREACHABLE_AFTER_S}) as cluster:
        heard = Heard(cluster)
        ask("wait for nodes")
        seen["joined"] = len(cluster.refresh(timeout_s=DEADLINE_S).nodes)
        group = launch(cluster, "all", 0, 1, 2)
        cut_and_mend(cluster, heard, group, seen)
        hold_where_it_was_made(cluster, group, seen)
        lose_two(cluster, heard, group, seen)
        use_what_is_back(cluster, group, seen)


def second(seen):
    """A job that is opened after a loss, and whose Ray loses its head."""
    with Cluster(num_nodes=1) as cluster:
        seen["nodes"] = cluster.num_nodes
    with Cluster({"num_nodes": 2, "unreachable_after_s": 4.0}) as cluster:
        group = launch(cluster, "left", 1)
        [pid] = group.where().wait(DEADLINE_S)
        calling = group.hang()
        ask("lose the head", pid)
        waits = Waits()
        waits.end("call", calling.wait, DEADLINE_S)
        waits.end("launch", lambda: launch(cluster, "late", 0))
        waits.end("close", cluster.close)
        seen["headless"] = waits.ends
        ask("seen", seen)


def silent_head(seen):
    """A job whose head's host falls silent, and its driver is on another one, which ends by an error."""
    cluster = Cluster({"num_nodes": 2, "unreachable_after_s": 4.0})
    heard = Heard(cluster)
    ask("unplug", 0)
    waits = Waits()
    waits.end("job", lambda: heard.wait_for_one("JobLost").reason)
    waits.end("call", lambda: launch(cluster, "late", 1))
    seen["silent head"] = waits.ends
    ask("seen", seen)
    raise RuntimeError(MISTAKE)


def kept(seen):
    """A job whose job server is on the first host, begun and ended by a driver on another one."""
    with Cluster(num_nodes=2, job="kept", detached=True) as cluster:
        group = launch(cluster, "stays", 0, 1, detached=True)
        seen["hosts"] = [entry.ip for entry in cluster.topology.nodes]
        seen["group"] = cluster.attach("stays").host().wait(DEADLINE_S)
        group.terminate()
        cluster.stop_job()


if __name__ == "__main__":
    FOUND = {}
    for story in sys.argv[1:]:
        {"first": first, "kept": kept, "silent head": silent_head, "second": second}[story](FOUND)
    ask("seen", FOUND)
