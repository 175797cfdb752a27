"""A driver with a Ray of its own, a call that goes on and a thread that waits; run as a program, to be ended."""

import sys
import threading

from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker


class Busy(Worker):
    """Does not come back."""

    def wait(self):
        """Waits for longer than the driver lives."""
        threading.Event().wait(600)


def say(text):
    """To the test that started this."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    say("begun")
    with Cluster(simulate="1x1") as cluster:
        say("open")
        group = Busy.create_group().launch(cluster, NodePlacementStrategy([0]), name="busy")
        say("launched")
        threading.Thread(target=threading.Event().wait).start()
        waiting = group.wait()
        say("busy")
        waiting.wait()
