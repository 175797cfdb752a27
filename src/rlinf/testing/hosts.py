"""A fleet of hosts on this machine: each a network namespace, with a home of its own, that is a node of one Ray.

What goes wrong between real machines can be done to them: a host loses its power or its cable, what it sends is lost
on the way and what comes to it is not, its processes are killed or stopped. Ray is the real one, started by
`rlinf node start`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from rlinf.testing.machines import Machine, MachineStar
from rlinf_scheduler.hardware.vendors import MASKS
from rlinf_scheduler.planning import Node
from rlinf_scheduler.proc import living
from rlinf_scheduler.ray_backend.probe import simulated_environment

PORT = 6379
_RLINF = "import sys; from rlinf_scheduler.cli.main import main; sys.argv[0] = 'rlinf'; main()"
_START_TIMEOUT_S = 120.0
# Small: nothing of ours goes through Ray's store.
_STORE_BYTES = 80 << 20


class Host:
    """One of the hosts.

    Args:
        machine: its network.
        folder: for its temporary files, and its home.
        rank: which node it is.
        num_accelerators: how many it pretends to have.

    Attributes:
        machine, rank: see above.
        environment: what its programs start with.
    """

    def __init__(self, machine: Machine, folder: Path, rank: int, num_accelerators: int) -> None:
        self.machine = machine
        self.rank = rank
        self.num_accelerators = num_accelerators
        temporary = folder / str(rank)
        temporary.mkdir()
        pretended = simulated_environment(rank, Node(num_accelerators=num_accelerators))
        others = {name: value for name, value in os.environ.items() if name not in MASKS}
        kept = {name: value for name, value in others.items() if not name.startswith(("RAY_", "RLINF_"))}
        # One home for all, as on a shared disk: the token lies there.
        self.environment = {**kept, **pretended, "HOME": str(folder), "TMPDIR": str(temporary)}

    def start(self, command: Sequence[str], **options: object) -> subprocess.Popen[str]:
        """Start a program on it; `options` are those of `subprocess.Popen`."""
        given: dict[str, Any] = {"env": self.environment, "text": True, **options}
        return subprocess.Popen(command, preexec_fn=self.machine.enter, **given)  # noqa: S603

    def rlinf(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `rlinf` on it; what it says can be read."""
        pipe = subprocess.PIPE
        return self.start([sys.executable, "-c", _RLINF, *arguments], stdout=pipe, stderr=pipe)

    def processes(self) -> dict[int, str]:
        """The processes that run on it, by number, each with its command line."""
        with open(self.machine.namespace, "rb") as namespace:
            network = os.fstat(namespace.fileno()).st_ino
        found = {}
        for directory in Path("/proc").iterdir():
            if directory.name.isdecimal():
                try:
                    if os.stat(directory / "ns" / "net").st_ino == network:
                        words = (directory / "cmdline").read_bytes().decode(errors="replace").split("\0")
                        found[int(directory.name)] = " ".join(words).strip()
                except OSError:  # it has ended
                    continue
        return found

    def is_node(self) -> bool:
        """Whether it is a node of its Ray now."""
        return bool(self._processes_of("raylet"))

    def raylet(self) -> int:
        """The process that makes it a node of its Ray."""
        return self._process_of("raylet")

    def head(self) -> int:
        """The process of the Ray's own service, if it is the first host."""
        return self._process_of("gcs_server")

    def _process_of(self, program: str) -> int:
        found = self._processes_of(program)
        if len(found) != 1:
            raise RuntimeError(f"host {self.rank} runs {len(found)} processes of {program}, not one")
        return found[0]

    def _processes_of(self, program: str) -> list[int]:
        found = [
            pid
            for pid, command in self.processes().items()
            if command.partition(" ")[0].endswith(f"/{program}")
        ]
        # What it has just forked bears its name until it runs a program of its own.
        forked = {process.pid for process, parent in living().items() if parent in found}
        return [pid for pid in found if pid not in forked]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes but this one."""
        for pid in self.processes():
            if pid != os.getpid():
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue


class HostFleet:
    """Hosts, and the one Ray that they are nodes of; a context manager. What was started on them ends with it.

    Args:
        num_hosts: how many; the first one is the head.
        num_accelerators: how many each of them pretends to have.

    Attributes:
        hosts: they, by rank.

    Raises:
        MachinesUnavailable: network namespaces cannot be made here.
    """

    def __init__(self, num_hosts: int, num_accelerators: int = 0) -> None:
        with ExitStack() as stack:
            self.network = stack.enter_context(MachineStar(num_hosts))
            # Ray's sockets have long names: a short folder.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rl", dir="/tmp"))
            self.hosts = [
                Host(machine, Path(folder), rank, num_accelerators)
                for rank, machine in enumerate(self.network.machines)
            ]
            stack.callback(self._end)
            self._stack = stack.pop_all()

    @property
    def address(self) -> str:
        """Where the Ray is."""
        return f"{self.hosts[0].machine.address}:{PORT}"

    def start_nodes(self, ranks: Sequence[int]) -> None:
        """Make these hosts nodes of the Ray; the head first, the others side by side.

        Raises:
            RuntimeError: `rlinf node start` failed; the text is what it said.
        """
        if 0 in ranks:
            self._await([self._start_node(0)])
        self._await([self._start_node(rank) for rank in ranks if rank != 0])

    def _start_node(self, rank: int) -> subprocess.Popen[str]:
        host = self.hosts[rank]
        where = ["--address", self.address] if rank else ["--head", "--interface", host.machine.address]
        devices = ["--num-gpus", str(host.num_accelerators)]
        # Ray starts as many processes beforehand as there are processors, and one that reads what its own tasks print.
        spare = ["--num-cpus", "1", "--include-log-monitor", "false"]
        settings = [*spare, "--object-store-memory", str(_STORE_BYTES), *devices]
        return host.rlinf("node", "start", *where, "--rank", str(rank), "--", *settings)

    def _await(self, commands: Sequence[subprocess.Popen[str]]) -> None:
        for command in commands:
            said = command.communicate(timeout=_START_TIMEOUT_S)
            if command.returncode != 0:
                raise RuntimeError("\n".join(said))

    def descriptor(self, pid: int) -> int:
        """A descriptor of one of the hosts' processes, which is readable once that has ended; the fleet closes it."""
        descriptor = os.pidfd_open(pid)
        self._stack.callback(os.close, descriptor)
        return descriptor

    def lose_power(self, rank: int) -> None:
        """A host is gone, as if somebody had pulled both its plugs: nobody hears that its processes end."""
        self.network.unplug(self.hosts[rank].machine)
        self.hosts[rank].send(signal.SIGKILL)

    def _end(self) -> None:
        for host in reversed(self.hosts):
            host.send(signal.SIGKILL)

    def close(self) -> None:
        """End everything on the hosts, and give them up."""
        self._stack.close()

    def __enter__(self) -> HostFleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
