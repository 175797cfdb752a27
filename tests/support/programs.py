"""Programs, run as their users do, but forked from a process that has imported what they import.

To start an interpreter that imports the library takes half a second of a core, with Ray a whole one. All else is as
if one had been started: arguments, variables, folder, what it reads and prints, `__main__`, and its own end. What a
program loads, and what is read while it loads, is not seen in one that is forked: tests of that start an interpreter.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path

# Imported beforehand, and by what is named there.
WITHOUT_RAY = (
    "rlinf_scheduler.cli.main",
    "rlinf.testing.local",
    "rlinf_scheduler.channel",
    "rlinf_scheduler.placement",
)
WITH_RAY = *WITHOUT_RAY, "rlinf_scheduler.cluster", "rlinf_scheduler.worker"
# As it is installed.
RLINF = "from rlinf_scheduler.cli.main import main; main()"
_LONGEST_BYTES = 1 << 20
_STANDARD = "stdin", "stdout", "stderr"


def _is_readable(descriptor, timeout):
    """Whether it is, within so many seconds; of whatever number it is: `select` takes those below 1024."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout is None else max(0.0, timeout) * 1000))


class Program:
    """A program that runs, or has run; a context manager, which kills it at its end.

    Args:
        command: the path of a file, or `-c` and the code; then its arguments.
        with_ray: it uses Ray.
        imports: modules that are imported beforehand; None: those of the library, by `with_ray`.
        env: its variables; None: those of this process.
        cwd: its folder; None: that of this process.
        stdin, stdout, stderr: descriptors; None: pipes.
        new_session: whether it has a session of its own.
        machine: which of `rlinf.testing.machines` it runs on; None: this one.

    Attributes:
        pid: its number.
        returncode: how it ended, as of `subprocess.Popen`; None: it has not been waited for.
        stdin, stdout, stderr: this process's ends of the pipes, as text; None where a descriptor was given.
    """

    def __init__(
        self,
        *command,
        with_ray=False,
        imports=None,
        env=None,
        cwd=None,
        stdin=None,
        stdout=None,
        stderr=None,
        new_session=False,
        machine=None,
    ):
        self.returncode = None
        ours, theirs = [], []
        for given, mode in ((stdin, "w"), (stdout, "r"), (stderr, "r")):
            if given is None:
                reading, writing = os.pipe()
                mine, others = (writing, reading) if mode == "w" else (reading, writing)
                ours.append(open(mine, mode))  # noqa: SIM115 - closed at the end
                theirs.append(others)
            else:
                ours.append(None)
                theirs.append(os.dup(given))
        self.stdin, self.stdout, self.stderr = ours
        self._status, theirs_too = os.pipe()
        theirs.append(theirs_too)
        wanted = {
            "command": list(map(str, command)),
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or Path.cwd()),
            "new_session": new_session,
            "machine": machine and [machine.address, machine.namespace],
        }
        try:
            self.pid = _nursery(imports or (WITH_RAY if with_ray else WITHOUT_RAY)).fork(wanted, theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def wait(self, timeout=None):
        """How it ended, once it has, within so many seconds.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        if self.returncode is None:
            if not _is_readable(self._status, timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self.returncode = int(os.read(self._status, 10))
        return self.returncode

    def poll(self):
        """How it ended; None: it has not."""
        return self.wait(0) if self._has_ended() else None

    def _has_ended(self):
        return self.returncode is not None or _is_readable(self._status, 0)

    def send_signal(self, number):
        """Send it a signal, unless it has ended."""
        if not self._has_ended():
            with contextlib.suppress(ProcessLookupError):  # it has, and how is about to be told
                os.kill(self.pid, number)

    def kill(self):
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.wait()
        os.close(self._status)
        for pipe in filter(None, (self.stdin, self.stdout, self.stderr)):
            pipe.close()


def run_program(*command, input="", timeout=60, **options):
    """Run a program to its end, and give what it printed, as `subprocess.run` with `capture_output` and `text`."""
    with contextlib.ExitStack() as stack:
        typed, out, err = files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)]
        typed.write(input)
        typed.seek(0)
        pipes = {name: file.fileno() for name, file in zip(_STANDARD, files, strict=True)}
        program = stack.enter_context(Program(*command, **pipes, **options))
        program.wait(timeout)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, program.returncode, out.read(), err.read())


class _Nursery:
    """The process that has imported these modules, and what it is asked by."""

    def __init__(self, modules):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno()), *modules]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        self._asking = threading.Lock()
        self._socket = ours
        atexit.register(process.wait)
        atexit.register(ours.close)

    def fork(self, wanted, descriptors):
        """Have it fork one that runs a program; its number."""
        with self._asking:
            socket.send_fds(self._socket, [json.dumps(wanted).encode()], descriptors)
            return int(self._socket.recv(20))


_nursery = functools.cache(_Nursery)


def _be_asked(asking):
    """Fork whenever it is asked for; returns in those that are forked, with what each is to be."""
    poll = select.poll()
    poll.register(asking, select.POLLIN)
    running = {}  # by a descriptor of each
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != asking.fileno():
                poll.unregister(descriptor)
                pid, status = running.pop(descriptor)
                os.write(status, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                os.close(descriptor)
                os.close(status)
                continue
            message, given, _, _ = socket.recv_fds(asking, _LONGEST_BYTES, 4)
            if not message:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                for standard, each in enumerate(given[:3]):
                    os.dup2(each, standard)
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                return json.loads(message)
            *passed, status = given
            for each in passed:
                os.close(each)
            asking.send(str(pid).encode())
            running[os.pidfd_open(pid)] = pid, status
            poll.register(list(running)[-1], select.POLLIN)


def _become(wanted):
    """Make this process one that was started as `wanted`; its code and its namespace."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if wanted["new_session"]:
        os.setsid()
    if wanted["machine"]:
        from rlinf.testing.machines import Machine

        Machine(*wanted["machine"]).enter()
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["env"])
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    path = [each for each in wanted["env"].get("PYTHONPATH", "").split(os.pathsep) if each]
    first, *arguments = wanted["command"]
    main = types.ModuleType("__main__")
    if first == "-c":
        code, *arguments = arguments
        file, name, folder = "<string>", "-c", ""
    else:
        code, file, name, folder = Path(first).read_bytes(), first, first, str(Path(first).resolve().parent)
        main.__file__ = file
    sys.argv[:] = [name, *arguments]
    sys.path[:0] = [folder, *path]
    importlib.invalidate_caches()
    sys.modules["__main__"] = main
    return compile(code, file, "exec"), main.__dict__


if __name__ == "__main__":
    from forked_ray_worker import forked_ray_workers

    del sys.path[0]  # this folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its programs are interrupted, each by itself
    with socket.socket(fileno=int(sys.argv[1])) as its_socket:
        for its_module in sys.argv[2:]:
            importlib.import_module(its_module)
        if WITH_RAY[-1] in sys.modules:
            its_workers = forked_ray_workers()
            its_workers.__enter__()  # of the Rays of its programs
        gc.collect()
        gc.freeze()
        its_order = _be_asked(its_socket)
        its_socket.detach()
    # At the top, so that the interpreter ends as that of any program.
    exec(*_become(its_order))
