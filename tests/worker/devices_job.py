"""A job of its own that launches groups on devices; it is told what to do by lines, and answers each by one."""

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from rlinf.scheduler import Cluster, FlexiblePlacementStrategy, Worker
from rlinf_scheduler.worker.processes import Processes


class Idle(Worker):
    """Does nothing."""

    def pid(self):
        """Return the process's number."""
        return os.getpid()


def say(*words):
    """Answer by a line."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def reserve_side_by_side(session, wanted):
    """Reserve devices of node 0 as so many processes of one job do at the same moment, and give them back."""
    barrier = threading.Barrier(len(wanted))

    def reserve(devices):
        processes = Processes(session)  # each process has its own
        barrier.wait(60)
        return processes.reserve("idle", {0: devices.split(",")}, wait_s=0)

    with ThreadPoolExecutor() as threads:
        outcomes = [threads.submit(reserve, devices) for devices in wanted]
    errors = [outcome.exception() for outcome in outcomes]
    for outcome, error in zip(outcomes, errors, strict=True):
        if error is None:
            outcome.result()()
    return ["done"] if not any(errors) else ["error", *map(repr, filter(None, errors))]


def main():
    with Cluster(address=sys.argv[1]) as cluster:
        groups = []
        say("ready")
        for line in sys.stdin:
            command, *args = line.split()
            if command == "end":
                break
            if command == "reserve":
                say(*reserve_side_by_side(cluster.session, args))
                continue
            devices, wait_s = [int(device) for device in args[0].split(",")], float(args[1])
            try:
                strategy = FlexiblePlacementStrategy([devices])
                groups.append(Idle.create_group().launch(cluster, strategy, wait_s=wait_s))
                say("done", *groups[-1].pid().wait(60))
            except Exception as error:  # noqa: BLE001 - told to who asked
                say("error", type(error).__name__, str(error).replace("\n", " | "))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
