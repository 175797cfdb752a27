"""Ray's worker, forked from a process that has imported it: what the raylets of the Ray that all tests share start.

To start an interpreter that imports Ray and the library takes a rank most of a second of a core. The first that a
raylet starts for a job stays, and forks a worker for itself and for each of the job that comes later and hands over its
descriptors, its variables and its arguments. Ray reads a process's job as it is imported: each job has its own. All
else is Ray's: how it is asked for, registered, watched and ended.

One that is to have an environment of its own is started as Ray starts it.
"""

import contextlib
import gc
import importlib.util
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

_RAYLET = "--raylet-name="
_OWN_ENVIRONMENT = "--runtime-env-hash="
_FIRST_JOB = "01000000"
_LONGEST_BYTES = 1 << 18


@contextlib.contextmanager
def forked_ray_workers():
    """Ray's nodes that are started inside have their workers forked."""
    from unittest import mock

    from ray._private import parameter

    class Forked(parameter.RayParams):
        def __init__(self, **given):
            super().__init__(worker_path=__file__, **given)

    with mock.patch.object(parameter, "RayParams", Forked):
        yield


def _first_of(place):
    """A socket that listens there for workers of one raylet and job; None if another process has it."""
    own = f"{place}.{os.getpid()}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(own)
    listening.listen(256)
    try:
        os.link(own, place)
    except FileExistsError:
        listening.close()
        return None
    finally:
        os.unlink(own)
    return listening


def _hand_over(place):
    wanted = {"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": str(Path.cwd())}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(place)
        socket.send_fds(asking, [json.dumps(wanted).encode()], [0, 1, 2])


def _fork_until_the_raylet_ends(listening):
    """Fork for this process, and for whoever asks; returns in those that are forked."""
    parent = os.getppid()
    raylet = os.pidfd_open(parent)
    former = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here
    os.setpgid(0, os.getpgid(parent))  # a raylet ends the process group of a worker that has ended

    def forks():
        if os.fork():
            return False
        os.setpgid(0, 0)
        signal.signal(signal.SIGCHLD, former)
        listening.close()
        os.close(raylet)
        return True

    if forks():
        return
    while os.getppid() == parent:
        if raylet in select.select([listening, raylet], [], [])[0]:
            break
        with listening.accept()[0] as asking:
            message, given, _, _ = socket.recv_fds(asking, _LONGEST_BYTES, 3)
        if message and forks():
            _become(json.loads(message), given)
            return
        for each in given:
            os.close(each)
    os._exit(0)


def _become(wanted, given):
    for standard, each in enumerate(given):
        os.dup2(each, standard)
        os.close(each)
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    sys.argv[1:] = wanted["arguments"]


def _value(option):
    return next(each.removeprefix(option) for each in sys.argv if each.startswith(option))


def _be_a_worker():
    """Returns in a process that is to be Ray's worker, with its program."""
    path = str(Path(importlib.util.find_spec("ray").origin).parent / "_private/workers/default_worker.py")
    if _value(_OWN_ENVIRONMENT) != "0":
        os.execv(sys.executable, [sys.executable, path, *sys.argv[1:]])
    place = f"{_value(_RAYLET)}.{os.environ['RAY_JOB_ID']}"
    if (listening := _first_of(place)) is None:
        _hand_over(place)
        os._exit(0)
    from programs import WITH_RAY

    sys.path[0] = str(Path(path).parent)
    sys.argv[0] = path
    # What ranks of the tests' own job import has hundreds of uses, and in other jobs two or three.
    own = os.environ["RAY_JOB_ID"] == _FIRST_JOB
    more = (*WITH_RAY, "torch") if own else ("rlinf_scheduler.worker",)
    for each in ("ray._private.workers.default_worker", "rlinf_scheduler.host.host", *more):
        importlib.import_module(each)
    program = compile(Path(path).read_bytes(), path, "exec")
    gc.collect()
    gc.freeze()
    _fork_until_the_raylet_ends(listening)
    return program


if __name__ == "__main__":
    # At the top, so that the interpreter ends as that of any program.
    exec(_be_a_worker())
