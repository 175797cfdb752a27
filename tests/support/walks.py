"""A program that prints which files common calls enter, in all threads of its process: python walks.py [ADDRESS]

It launches ranks on the Ray at that address, else on a simulated cluster of its own.
"""

import json
import sys
import threading
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
REPEATED = (
    10  # of calls that take microseconds: what is done only now and then of them is part of a walk, too
)
WALKS = 20
# What a process does every few seconds, whatever else: a launch that takes so long, on a busy machine, meets it.
REGULAR = (
    "/observe/own_activity.py",
    "/observe/own_stats.py",
    "/observe/stacks.py",
    "/ray_backend/authentication.py",
    "/ray_backend/lost_nodes.py",
)
WAIT_S = 60


class Walk:
    """The files of the library that functions are called in while it is open, in order; a context manager."""

    _entered = None  # one at a time

    def __enter__(self):
        Walk._entered = self.files = {}  # in the order in which they are entered
        return self

    def __exit__(self, *_):
        Walk._entered = None
        self.files = [file for file in self.files if file.startswith(f"{SOURCE}/")]

    @staticmethod
    def note(frame, event, _):
        entered = Walk._entered
        if entered is not None and event == "call":
            entered.setdefault(frame.f_code.co_filename)


def shortest(walk, times):
    """The files of the shortest of several walks: what a process does now and then is in some of them only."""
    walks = walked(walk, times)
    return min(walks, key=lambda files: (len(files), sum(len(Path(file).read_bytes()) for file in files)))


def in_each(walk, times):
    """The files that each of several walks enters; of long ones no single one is without what is done now and then."""
    first, *others = walked(walk, times)
    return [file for file in first if not file.endswith(REGULAR) and all(file in other for other in others)]


def walked(walk, times):
    """The files of each of several walks; each begins when nothing of the one before is left, which would be first."""
    from rlinf_scheduler.session import current_session

    walks = []
    for _ in range(times):
        settle(current_session().messenger)
        with Walk() as each:
            walk()
        walks.append(each.files)
    return walks


def settle(messenger):
    """Wait until the I/O thread has nothing to do: how a call goes depends on what is left of the one before."""
    for _ in range(3):  # what it does may have more follow
        idle = threading.Event()
        messenger.submit(idle.set)
        assert idle.wait(WAIT_S)


def put_and_get():
    from rlinf.scheduler import Channel
    from rlinf.testing import LocalRuntime
    from rlinf_scheduler.session import current_session

    with LocalRuntime():
        channel = Channel.create("items")
        messenger = current_session().messenger

        def walk():
            for number in range(REPEATED):
                channel.put({"a": number}, timeout_s=WAIT_S)
                settle(messenger)
                channel.get(timeout_s=WAIT_S)
                settle(messenger)

        walk()  # connects, and imports what is imported on first use
        return shortest(walk, WALKS)


def launch_and_call(address):
    from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker

    class Echo(Worker):
        def echo(self, value):
            return value

    with Cluster(address=address) if address else Cluster(simulate="1x2") as cluster:
        groups = []

        def launch():
            strategy, name = NodePlacementStrategy([0, 0]), f"walk{len(groups)}"
            groups.append(Echo.create_group().launch(cluster, placement_strategy=strategy, name=name))

        def call():
            for number in range(REPEATED):
                groups[0].echo(number).wait(timeout_s=WAIT_S)

        launch()
        call()
        return in_each(launch, 3), shortest(call, WALKS)


def main(address=None):
    threading.setprofile(Walk.note)  # before there are threads: those that run have none
    sys.setprofile(Walk.note)
    item = put_and_get()
    launch, call = launch_and_call(address)
    sys.setprofile(None)
    threading.setprofile(None)
    walks = {"a put and get": item, "a call of a group": call, "a launch of two ranks": launch}
    sys.stdout.write(json.dumps(walks) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
