"""Ray's worker, forked from a process that has imported it: what the raylets of the tests' Rays start.

To start an interpreter that imports Ray and the library takes a rank most of a second of a core. The first that a
raylet starts stays, and has imported what both of them import. It forks the first of each job, which imports Ray, stays
too, and forks a worker for itself and for each that comes later and hands over its descriptors, its variables and its
arguments. Ray reads a process's job as it is imported: each job has its own. All else is Ray's: how it is asked for,
registered, watched and ended.

One that is to have an environment of its own is started as Ray starts it.
"""

import contextlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

import forked_memory

_RAYLET = "--raylet-name="
_OWN_ENVIRONMENT = "--runtime-env-hash="
_FIRST_JOB, _MANY_RANKS = "01000000", "RLINF_TESTS_MANY_RANKS"
_LONGEST_BYTES = 1 << 18
_TAKEN = b"taken"
_TAKEN_S = 60.0
# What Ray and the library import, but neither Ray itself nor what imports it.
_BEFORE_RAY = (
    "rlinf_scheduler.host.host",
    "rlinf_scheduler.worker",
    "argparse",
    "click",
    "difflib",
    "filelock",
    "google.protobuf.descriptor_pb2",
    "html",
    "jsonschema",
    "msgpack",
    "pdb",
    "requests",
    "tarfile",
    "yaml",
    "zipfile",
)


@contextlib.contextmanager
def forked_ray_workers(*, many=False):
    """Ray's nodes that are started inside have their workers forked; the first job there has many ranks, or not."""
    from unittest import mock

    from ray._private import parameter

    from rlinf_scheduler.ray_backend.variables import set_meanwhile

    class Forked(parameter.RayParams):
        def __init__(self, **given):
            super().__init__(worker_path=__file__, **given)

    with (
        mock.patch.object(parameter, "RayParams", Forked),
        set_meanwhile({_MANY_RANKS: "1" if many else None}),
    ):
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


def _hand_over(place, *more):
    """Whether another process has forked one in the place of this one."""
    wanted = {"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": str(Path.cwd())}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.settimeout(_TAKEN_S)
        try:
            asking.connect(place)
            socket.send_fds(asking, [json.dumps(wanted).encode()], [0, 1, 2, *more])
            return asking.recv(len(_TAKEN)) == _TAKEN
        except ConnectionError:  # its raylet has ended, and it with that
            return False


def _fork_until_the_raylet_ends(listening, *first):
    """Fork for this process, and for whoever asks; returns in those that are forked, with the sockets that each has."""
    pid = int(os.environ["RAY_RAYLET_PID"])
    raylet = os.pidfd_open(pid)
    former = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here
    os.setpgid(0, os.getpgid(pid))  # a raylet ends the process group of a worker that has ended

    def forks():
        if os.fork():
            return False
        os.setpgid(0, 0)
        signal.signal(signal.SIGCHLD, former)
        listening.close()
        os.close(raylet)
        return True

    if forks():
        return first
    for each in first:
        each.close()
    while raylet not in select.select([listening, raylet], [], [])[0]:
        with listening.accept()[0] as asking:
            message, given, _, _ = socket.recv_fds(asking, _LONGEST_BYTES, 4)
            if message and forks():
                return _become(json.loads(message), given)
            if message:
                asking.send(_TAKEN)
        for each in given:
            os.close(each)
    os._exit(0)


def _become(wanted, given):
    for standard, each in enumerate(given[:3]):
        os.dup2(each, standard)
        os.close(each)
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    sys.argv[1:] = wanted["arguments"]
    return [socket.socket(fileno=each) for each in given[3:]]


def _value(option):
    return next(each.removeprefix(option) for each in sys.argv if each.startswith(option))


def _import(*names):
    for each in names:
        importlib.import_module(each)
    forked_memory.keep()


def _be_a_worker():
    """Returns in a process that is to be Ray's worker, with its program."""
    path = str(Path(importlib.util.find_spec("ray").origin).parent / "_private/workers/default_worker.py")
    if _value(_OWN_ENVIRONMENT) != "0":
        os.execv(sys.executable, [sys.executable, path, *sys.argv[1:]])
    raylet = _value(_RAYLET)
    while (listening := _first_of(place := f"{raylet}.{os.environ['RAY_JOB_ID']}")) is None:
        if _hand_over(place):
            os._exit(0)
        Path(place).unlink(missing_ok=True)
    of_raylet = f"{raylet}.all"
    if of_all := _first_of(of_raylet):
        _import(*_BEFORE_RAY)
        (listening,) = _fork_until_the_raylet_ends(of_all, listening)
    elif _hand_over(of_raylet, listening.fileno()):
        os._exit(0)
    else:
        Path(of_raylet).unlink(missing_ok=True)
    from programs import WITH_RAY

    sys.path[0] = str(Path(path).parent)
    sys.argv[0] = path
    # What ranks of the tests' own job import has hundreds of uses, and in other jobs two or three.
    own = os.environ["RAY_JOB_ID"] == _FIRST_JOB and _MANY_RANKS in os.environ
    _import(*_BEFORE_RAY[:2], "ray._private.workers.default_worker", *((*WITH_RAY, "torch") if own else ()))
    program = compile(Path(path).read_bytes(), path, "exec")
    _fork_until_the_raylet_ends(listening)
    return program


if __name__ == "__main__":
    # At the top, so that the interpreter ends as that of any program.
    exec(_be_a_worker())
