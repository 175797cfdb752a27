"""What other processes do in the tests of durable channels."""

from __future__ import annotations

import os
import resource
import signal

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
