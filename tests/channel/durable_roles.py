"""What other processes do in the tests of durable channels."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime


def hold(address, pipe, name, folder, options):
    """Hold a durable channel until the parent is gone, or kills this process; its disk may be small."""
    disk_bytes = options.pop("disk_bytes", None)
    if disk_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (disk_bytes, disk_bytes))
    with LocalRuntime(address, own_name="holder") as runtime:
        try:
            Channel.create(name, durable=folder, **options)
        except Exception as error:  # noqa: BLE001 - the parent raises it
            pipe.send(error)
            return
        pipe.send(None)
        while True:
            try:
                wanted = pipe.recv()
            except EOFError:
                return
            if wanted == "fork":
                child = os.fork()
                if not child:
                    signal.pause()
                pipe.send(child)
            if wanted == "write whole":
                server = runtime._servers._servers[name]
                runtime.messenger.submit(server.write_whole)


def measure_opening(pipe, folder):
    """Hold the channel of a journal, and say how much more memory that took at its peak, and what is there."""
    with LocalRuntime():
        before_kib = _memory_kib("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins now; see proc(5)
        channel = Channel.create("held", durable=folder, survives="process")
        peak_kib = _memory_kib("VmHWM")
        pipe.send((peak_kib - before_kib << 10, channel.qsize()))


def _memory_kib(which):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{which}:"))
