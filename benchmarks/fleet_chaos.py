"""A fleet of three hosts in which ranks, nodes and links fail at random while a job runs on it.

The hosts are network namespaces with addresses of their own, and nodes of one real Ray. Ranks are killed and stopped,
raylets are killed and stopped, hosts lose their power, cables are pulled for a moment or for longer than the grace
period lasts, and links carry in one direction only; what is gone comes back after a while. The job of
`fleet_chaos_job.py` goes on all the while: every call, exchange, channel, launch and resize has to end within its
deadline, by the right value or by an error that names the cause. When the job is over, nothing of it may be left on any
host.

    python benchmarks/fleet_chaos.py [--minutes 5] [--seed 1]

Exits with 1 if one did not, or something is left. Needs root, for the namespaces.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import select
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rlinf.testing.hosts import Host, HostFleet

JOB = Path(__file__).with_name("fleet_chaos_job.py")
# Something fails about so often, for so long: some of it for longer than the grace period.
EVERY_S, LASTS_S = 3.0, (0.5, 16.0)
START_S, END_S = 120.0, 120.0
# What is left may take a moment to end.
MOMENT_S = 10.0
# A process that was killed leaves its socket; after so long the next process on its host takes it away.
STALE_S = 62.0
RANK = re.compile(r"^[\w-]+:\d+( \w+\(\))?$")


class Chaos:
    """What happens to the hosts.

    Args:
        fleet: they.
        seed: of what happens when.
    """

    def __init__(self, fleet: HostFleet, seed: int) -> None:
        self.events: Counter[str] = Counter()
        self._fleet = fleet
        self._dice = random.Random(seed)
        # What is to be mended, when, and which host it is about (None: a process).
        self._starting: dict[int, threading.Thread] = {}
        self._broken: list[tuple[float, int | None, Callable[[], None]]] = []

    def rage(self, until: float, job: subprocess.Popen[str]) -> None:
        """Let things fail until then."""
        faults = [self._kill_rank, self._stop_rank, self._kill_raylet, self._stop_raylet, self._lose_power]
        faults += [self._cut, self._cut, self._mute, self._mute]
        while (now := time.monotonic()) < until and job.poll() is None:
            self._mend(now)
            self._dice.choice(faults)()
            time.sleep(self._dice.uniform(0, 2 * EVERY_S))

    def calm(self) -> None:
        """Mend everything."""
        self._mend(float("inf"))
        for thread in self._starting.values():
            thread.join(START_S)

    def _mend(self, now: float) -> None:
        due = [each for each in self._broken if each[0] <= now]
        self._broken = [each for each in self._broken if each[0] > now]
        for _, _, mend in due:
            mend()

    def mend_nodes(self) -> None:
        """Make those hosts nodes again that are none; when nothing is broken."""
        for host in self._fleet.hosts[1:]:
            if not host.is_node():
                self._start_again(host)

    def _note(self, what: str, host: int | None, mend: Callable[[], None]) -> None:
        self.events[what] += 1
        print(f"{time.strftime('%H:%M:%S')} {what}{'' if host is None else f': host {host}'}", flush=True)
        self._broken.append((time.monotonic() + self._dice.uniform(*LASTS_S), host, mend))

    def _healthy(self) -> list[int]:
        """Hosts but the head to which nothing has happened; one of them is left alone."""
        broken = {host for _, host, _ in self._broken}
        broken |= {rank for rank, thread in self._starting.items() if thread.is_alive()}
        healthy = [host.rank for host in self._fleet.hosts[1:] if host.rank not in broken]
        return healthy if len(healthy) == len(self._fleet.hosts) - 1 else []

    def _ranks(self) -> list[int]:
        return [
            pid for host in self._fleet.hosts for pid, name in host.processes().items() if RANK.match(name)
        ]

    def _kill_rank(self) -> None:
        for pid in self._dice.sample(ranks := self._ranks(), min(1, len(ranks))):
            _send(pid, signal.SIGKILL)
            self._note("a rank is killed", None, lambda: None)

    def _stop_rank(self) -> None:
        for pid in self._dice.sample(ranks := self._ranks(), min(1, len(ranks))):
            _send(pid, signal.SIGSTOP)
            self._note("a rank is stopped", None, partial(_send, pid, signal.SIGCONT))

    def _a_host(self) -> Iterator[Host]:
        healthy = self._healthy()
        if healthy:
            host = self._fleet.hosts[self._dice.choice(healthy)]
            if host.is_node():
                yield host
            else:
                self._begin_again(host)

    def _kill_raylet(self) -> None:
        for host in self._a_host():
            _send(host.raylet(), signal.SIGKILL)
            self._note("a raylet is killed", host.rank, partial(self._begin_again, host))

    def _stop_raylet(self) -> None:
        for host in self._a_host():
            raylet = host.raylet()
            _send(raylet, signal.SIGSTOP)
            self._note("a raylet is stopped", host.rank, partial(_send, raylet, signal.SIGCONT))

    def _lose_power(self) -> None:
        for host in self._a_host():
            self._fleet.lose_power(host.rank)
            self._note("a host loses its power", host.rank, partial(self._power_on, host))

    def _cut(self) -> None:
        for host in self._a_host():
            self._fleet.network.unplug(host.machine)
            self._note("a cable is pulled", host.rank, partial(self._fleet.network.plug_in, host.machine))

    def _mute(self) -> None:
        network = self._fleet.network
        for host in self._a_host():
            other = self._dice.choice([each for each in self._fleet.hosts if each is not host])
            ends = self._dice.sample([host.machine, other.machine], 2)
            network.mute(*ends)
            self._note("a link carries in one direction only", host.rank, partial(network.unmute, *ends))

    def _power_on(self, host: Host) -> None:
        self._fleet.network.plug_in(host.machine)
        self._begin_again(host)

    def _begin_again(self, host: Host) -> None:
        """Make it a node again; that takes a while, in which other things fail."""
        thread = self._starting[host.rank] = threading.Thread(target=self._start_again, args=(host,))
        thread.start()

    def _start_again(self, host: Host) -> None:
        host.rlinf("node", "stop", "--grace-s", "0").communicate(timeout=END_S)
        self._fleet.start_nodes([host.rank])


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def left_of_job(fleet: HostFleet) -> list[str]:
    """The ranks that live on the hosts, and their sockets; none, soon after a job's end."""
    deadline = time.monotonic() + MOMENT_S
    while True:
        found = [each for each in _processes(fleet) if RANK.match(each.partition(": ")[2])]
        found += [str(path) for host in fleet.hosts for path in _sockets(host)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def _sockets(host: Host) -> Iterator[Path]:
    for path in Path(host.environment["TMPDIR"]).rglob("*"):
        with contextlib.suppress(OSError):
            if "/ray/" not in str(path) and stat.S_ISSOCK(path.lstat().st_mode):
                yield path


def held_devices(fleet: HostFleet) -> list[Any]:
    """Who holds accelerators."""
    said, complaint = fleet.hosts[0].rlinf("devices", "--json").communicate(timeout=END_S)
    holds: list[Any] = json.loads(said)["holds"] if said else [complaint]
    return holds


def left_at_end(fleet: HostFleet) -> list[str]:
    """What runs on the hosts when their nodes were stopped."""
    for host in reversed(fleet.hosts):
        host.rlinf("node", "stop", "--grace-s", "0").communicate(timeout=END_S)
    return _processes(fleet)


def _processes(fleet: HostFleet) -> list[str]:
    return [f"{host.rank}: {name}" for host in fleet.hosts for name in host.processes().values()]


def run_chaos(seconds: float, seed: int, folder: Path) -> dict[str, Any]:
    """What the job and the hosts were like at the end."""
    shared = set(os.listdir("/dev/shm"))
    with HostFleet(3, num_accelerators=2) as fleet:
        fleet.start_nodes([0, 1, 2])
        chaos = Chaos(fleet, seed)
        found = run_job(fleet, seconds, folder, chaos)
        found["faults"] = chaos.events
        time.sleep(STALE_S)
        chaos.mend_nodes()  # Ray may have given one up that was cut off
        found["wrong"] += run_job(fleet, 1.0, folder)["wrong"]
        found["left of the job"] = left_of_job(fleet)
        found["devices held"] = held_devices(fleet)
        found["left at the end"] = left_at_end(fleet)
        found["shared memory"] = [name for name in set(os.listdir("/dev/shm")) - shared if "rlinf" in name]
    return found


def run_job(fleet: HostFleet, seconds: float, folder: Path, chaos: Chaos | None = None) -> dict[str, Any]:
    """Let the job run while things fail; what it has found."""
    path = folder / "found.json"
    for old in (path, path.with_suffix(".ready")):
        old.unlink(missing_ok=True)
    with (folder / "said").open("a") as said:
        command = [sys.executable, str(JOB), str(seconds), str(path)]
        job = fleet.hosts[0].start(command, stdout=said, stderr=said)
        try:
            _wait_for(path.with_suffix(".ready"), job)
            if chaos is not None:
                chaos.rage(time.monotonic() + seconds, job)
                chaos.calm()
            return _outcome(job, path)
        finally:
            job.kill()
            job.wait()


def _outcome(job: subprocess.Popen[str], path: Path) -> dict[str, Any]:
    descriptor = os.pidfd_open(job.pid)
    try:
        if not select.select([descriptor], [], [], END_S)[0]:
            return {"wrong": [f"the job has not ended {END_S:.0f} s after its time"]}
    finally:
        os.close(descriptor)
    if not path.exists():
        return {"wrong": [f"the job ended with {job.wait()}"]}
    outcome: dict[str, Any] = json.loads(path.read_text())
    return outcome


def _wait_for(path: Path, job: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + START_S
    while not path.exists():
        if job.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the job did not start: {path.with_name('said').read_text()}")
        time.sleep(0.1)


LEFT = ("left of the job", "devices held", "left at the end", "shared memory")


def is_good(found: dict[str, Any]) -> bool:
    """Whether every wait ended as it should, and nothing is left."""
    return not any(found[name] for name in ("wrong", *LEFT)) and bool(found["answered"])


def report(found: dict[str, Any], seconds: float) -> str:
    """It in words."""
    lines = [f"{seconds:.0f} s, {_counts(found['faults'])}"]
    lines.append(f"answered: {_counts(found.get('answered', {}))}")
    lines += [f"    {count} x {what}" for what, count in sorted(found.get("errors", {}).items())]
    lines.append(f"events: {_counts(found.get('events', {}))}")
    lines.append(
        f"the longest wait ended {found.get('longest_s', 0):.1f} s after its deadline (less than 0: before)"
    )
    lines.append(f"late, unexplained or wrong: {len(found['wrong']) or 'none'}")
    lines += [f"    {each}" for each in found["wrong"]]
    lines += [f"{name}: {found[name] or 'none'}" for name in LEFT]
    return "\n".join(lines)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} x {what}" for what, count in sorted(counts.items())) or "nothing"


def main() -> None:
    """Let it happen, and say how it ended."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="of what happens when")
    parser.add_argument("--folder", type=Path, required=False, help="keep here what the job has said")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = run_chaos(60 * options.minutes, options.seed, folder)
    print(report(found, 60 * options.minutes))
    sys.exit(0 if is_good(found) else 1)


if __name__ == "__main__":
    main()
