"""A driver whose I/O thread ends in the middle of a job; run as a program."""

import sys
import threading

from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy, Worker
from rlinf_scheduler.errors import ChannelLost, ClusterError, CommError

DEADLINE_S = 60.0


class Sleeper(Worker):
    """Waits for what never comes."""

    def wait(self):
        """Does not return."""
        Channel.connect("nothing comes").get()


def show(*words):
    """Write a line to the test that started this."""
    sys.stdout.write(" ".join(words) + "\n")


def fail():
    """What the I/O thread does not survive."""
    raise SystemExit("a mistake")


def raised_by(function):
    """The text of the error that a function raises."""
    try:
        function()
    except (ChannelLost, ClusterError, CommError) as error:
        return str(error)
    return "nothing"


if __name__ == "__main__":
    cluster = Cluster(address=sys.argv[1])
    session = cluster.session
    channel = Channel.create("nothing comes")
    group = Sleeper.create_group().launch(cluster, NodePlacementStrategy([0]), name="sleeper")
    waiting = group.wait()
    left = threading.Event()
    session.on_close_last(left.set)
    session.messenger.submit(fail)
    show("call:", raised_by(lambda: waiting.wait(DEADLINE_S)))
    if not left.wait(DEADLINE_S):
        show("it has not left the job")
    show("channel:", raised_by(channel.qsize))
    show("cluster:", raised_by(lambda: cluster.session))
    with Cluster({"num_nodes": 1, "component_placement": {"sleeper": "0"}}, address=sys.argv[1]):
        Channel.create("again").put(1)
        show("another one works")
