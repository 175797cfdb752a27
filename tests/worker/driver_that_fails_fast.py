"""A driver with `cluster.fail_fast`, a call of which fails while it waits for something else; run as a program."""

import signal
import sys
import threading

from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker


class Failing(Worker):
    """Raises."""

    def work(self):
        """Fail."""
        raise LookupError("no such sample")


def ignore_sigterm(*_):
    """What a program does that handles the signal itself."""


if __name__ == "__main__":
    with Cluster({"num_nodes": 1, "fail_fast": True}, address=sys.argv[1]) as cluster:
        if "handles" in sys.argv:
            signal.signal(signal.SIGTERM, ignore_sigterm)
        group = Failing.create_group().launch(cluster, NodePlacementStrategy([0]), name="failing")
        try:
            for _ in range(20 if "often" in sys.argv else 1):
                group.work()
            threading.Event().wait(60)
            sys.stdout.write("it went on\n")
        finally:
            if "often" in sys.argv:  # while other failures come
                threading.Event().wait(1.0)
            sys.stdout.write("it was ended\n")
