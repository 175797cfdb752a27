"""A program: items, calls and weights of one process; then what is said for each room: python small_job.py ROOM ..."""

import contextlib
import io
import sys
from tempfile import TemporaryDirectory

import numpy as np

from local_group import LocalJob
from rlinf.scheduler import Channel, Worker
from rlinf.testing import LocalRuntime
from rlinf_scheduler.cli.main import main
from rlinf_scheduler.errors import SchedulerError
from rlinf_scheduler.weights.weights import open_weights

SLOW = {"enabled": True, "crossdc_pairs": [{"src": "env", "dst": "actor", "delay_ms": 50}]}


class Adder(Worker):
    def add(self, one, other):
        return one + other

    def log(self):
        self.log_metrics({"loss": 1.0}, step=1)


def work():
    with LocalRuntime() as runtime:
        channel = Channel.create("items")
        channel.put(np.arange(9))
        with channel.lease() as lease:
            assert lease.item.sum() == 36
        weights = runtime.service(open_weights)
        weights.publish("policy", {"w": np.ones(4)}, 1)
        assert weights.fetch("policy", into := {"w": np.zeros(4)}).wait() == 1
        assert into["w"].sum() == 4
        assert runtime.status().channels[0].name == "items"
    job = LocalJob()
    assert job.launch(Adder, 2).call(Adder.add, 1, 2).wait() == [3, 3]
    return job


def command(*words):
    sys.argv = ["rlinf", *words]
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.suppress(SystemExit):
        main()
    return said.getvalue()


def refusal(function, *args, **options):
    try:
        function(*args, **options)
    except SchedulerError as error:
        return str(error)
    return "nothing"


def durable(_job):
    """A channel in memory goes on where nothing can be kept on disk."""
    with TemporaryDirectory() as folder, LocalRuntime() as runtime:
        file = f"{folder}/file"
        channel = Channel.create("kept in memory")
        said = [
            refusal(Channel.create, "durable", durable=folder),
            refusal(Channel.create, "restored", restore=file),
            refusal(channel.save, file),
            refusal(runtime.save, folder, channels=[channel]),
            refusal(runtime.load, folder),
            refusal(runtime.load, folder, missing_ok=True),
        ]
        assert all("durable is not installed" in each for each in said), said
        channel.put("goes on")
        assert channel.get() == "goes on"
    return said[0]


def local(**options):
    with LocalRuntime(**options):
        pass


def device_items():
    with LocalRuntime():
        Channel.create("on devices", device_items=True)


ASKED = {
    "devices": lambda _: refusal(device_items),
    "doctor": lambda _: command("doctor"),
    "durable": durable,
    "emulation": lambda _: refusal(local, net_emulation=SLOW),
    "metrics": lambda job: (
        refusal(job.launch(Adder, 1, name="logs").call(Adder.log).wait) + command("metrics")
    ),
    "profiling": lambda job: refusal(job.launch(Adder, 1, name="seen").profile, 0.1),
    "web": lambda _: command("web"),
}

if __name__ == "__main__":
    there = work()
    for room in sys.argv[1:]:
        sys.stdout.write(f"{room}: {ASKED[room](there)}\n")
