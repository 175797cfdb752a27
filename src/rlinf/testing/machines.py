"""Machines on this one: network namespaces with real addresses of their own, and cables between them.

Processes in different namespaces have different machine ids and reach each other over TCP only. Linux, and the
right to make namespaces (root has it), are all that is needed: cables are laid with netlink messages, see
netlink(7), rtnetlink(7) and veth(4). A namespace lives as long as a descriptor of it or a process in it, so
that nothing is left behind, whatever becomes of its maker.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

CLONE_NEWNET = 0x4000_0000
IFF_UP = 1
IFLA_IFNAME, IFLA_MASTER, IFLA_LINKINFO, IFLA_NET_NS_FD = 3, 10, 18, 28
IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_INFO_PEER = 1, 2, 1
IFA_ADDRESS, IFA_LOCAL = 1, 2
TCA_KIND, TCA_OPTIONS, TCA_TBF_PARMS, TCA_TBF_BURST = 1, 2, 1, 6
NDA_DST, NDA_LLADDR, NUD_PERMANENT = 1, 2, 0x80
RTM_NEWLINK, RTM_NEWADDR, RTM_NEWNEIGH, RTM_DELNEIGH, RTM_NEWQDISC = 16, 20, 28, 29, 36
NLM_F_REQUEST, NLM_F_ACK, NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 1, 4, 0x100, 0x200, 0x400

_LOOPBACK = 1  # the number of the interface, in every namespace
_CABLE = 100
_SWITCH = 99
# Of locally administered ones, and no card's: what is sent there gets to the switch and no further.
_NOBODYS_CARD = bytes.fromhex("020000000001")
_FIRST_QDISC, _ROOT = 0x10000, 0xFFFFFFFF
_TICKS_PER_US = 15.625
_BURST_BYTES, _QUEUE_BYTES = 1 << 20, 4 << 20
_PREFIX_BITS = 24


class MachinesUnavailable(Exception):
    """Network namespaces cannot be made here; the text says why."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One of them; picklable, for child processes that are to run on it.

    Attributes:
        address: its IP address.
        namespace: the file that stands for its network namespace, as long as its star is open.
    """

    address: str
    namespace: str

    def enter(self) -> None:
        """Put the calling thread, and those that it starts from now on, on this machine.

        Call it in a process's main thread: that one counts for the process's machine id.
        """
        descriptor = os.open(self.namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _call("setns", descriptor, CLONE_NEWNET)
        finally:
            os.close(descriptor)

    def traffic(self) -> tuple[int, int]:
        """How many bytes its cable has brought, and how many it has taken away, headers included."""
        with self.entered(), open("/proc/thread-self/net/dev", encoding="ascii") as table:
            (line,) = [line for line in table if line.lstrip().startswith("cable")]
        numbers = line.partition(":")[2].split()
        return int(numbers[0]), int(numbers[8])

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """The calling thread is on this machine inside of `with`, and where it was before afterwards."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.enter()
            try:
                yield
            finally:
                _call("setns", before, CLONE_NEWNET)
        finally:
            os.close(before)


class MachineStar:
    """Several machines, each with a cable to one switch; a context manager.

    Args:
        num_machines: how many.
        link_bytes_per_s: how much each cable carries, in each direction; None: as much as the processors do.

    Attributes:
        machines: they, of the addresses 192.0.2.1, 192.0.2.2 and so on, of RFC 5737, which are nobody's.

    Raises:
        MachinesUnavailable: namespaces, cables, or the switch, cannot be made here.
    """

    def __init__(self, num_machines: int, link_bytes_per_s: int | None = None) -> None:
        self._ends: list[_End] = []
        try:
            for _ in range(num_machines + 1):
                self._ends.append(_on_a_thread(_End))
            switch, *ends = self._ends
            switch.be_switch()
            for number, end in enumerate(ends, 1):
                end.lay_cable_to(switch, _CABLE + number)
                end.switch_on(f"192.0.2.{number}")
                switch.take_in(_CABLE + number)
                if link_bytes_per_s is not None:
                    end.limit(_CABLE, link_bytes_per_s)
                    switch.limit(_CABLE + number, link_bytes_per_s)
        except OSError as error:
            self.close()
            message = f"network namespaces with a switch between them cannot be made here: {error}"
            raise MachinesUnavailable(message) from error
        self.machines = [Machine(f"192.0.2.{number}", end.path) for number, end in enumerate(ends, 1)]

    def close(self) -> None:
        """Give up the namespaces; they end with the last process in them."""
        for end in self._ends:
            end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def unplug(self, machine: Machine) -> None:
        """Take a machine's cable out of the switch: nothing gets through, and nobody is told."""
        self._ends[0].set_up(_CABLE + self._number_of(machine), False)

    def plug_in(self, machine: Machine) -> None:
        """Put the cable back."""
        self._ends[0].set_up(_CABLE + self._number_of(machine), True)

    def mute(self, machine: Machine, towards: Machine) -> None:
        """What a machine sends to another one is lost on the way; what comes from there arrives."""
        self._ends[self._number_of(machine)].send_astray(towards.address)

    def unmute(self, machine: Machine, towards: Machine) -> None:
        """What it sends arrives again."""
        self._ends[self._number_of(machine)].send_right(towards.address)

    def _number_of(self, machine: Machine) -> int:
        return self.machines.index(machine) + 1

    def slow_down(self, machine: Machine, link_bytes_per_s: int) -> None:
        """Let a machine's cable carry only so many bytes a second, in each direction; it has had no limit before."""
        number = self._number_of(machine)
        self._ends[number].limit(_CABLE, link_bytes_per_s)
        self._ends[0].limit(_CABLE + number, link_bytes_per_s)


class _End:
    """A namespace and what configures it: sockets stay in the namespace in which they were made."""

    def __init__(self) -> None:
        _call("unshare", CLONE_NEWNET)
        self._descriptor = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)

    def lay_cable_to(self, other: _End, number_there: int = _CABLE) -> None:
        name = _attribute(IFLA_IFNAME, b"cable\0")
        name_there = _attribute(
            IFLA_IFNAME, b"cable\0" if number_there == _CABLE else b"port%d\0" % number_there
        )
        there = _attribute(IFLA_NET_NS_FD, struct.pack("=I", other._descriptor))
        other_end = _interface(number_there) + name_there + there
        peer = _attribute(IFLA_INFO_DATA, _attribute(VETH_INFO_PEER, other_end))
        info = _attribute(IFLA_LINKINFO, _attribute(IFLA_INFO_KIND, b"veth\0") + peer)
        self._ask(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, _interface(_CABLE) + name + info)

    def switch_on(self, address: str) -> None:
        self.set_up(_LOOPBACK, True)
        packed = socket.inet_aton(address)
        head = struct.pack("=BBBBI", socket.AF_INET, _PREFIX_BITS, 0, 0, _CABLE)
        body = head + _attribute(IFA_LOCAL, packed) + _attribute(IFA_ADDRESS, packed)
        self._ask(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, body)
        self.set_up(_CABLE, True)

    def be_switch(self) -> None:
        info = _attribute(IFLA_LINKINFO, _attribute(IFLA_INFO_KIND, b"bridge\0"))
        name = _attribute(IFLA_IFNAME, b"switch\0")
        self._ask(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, _interface(_SWITCH) + name + info)
        self.set_up(_SWITCH, True)

    def take_in(self, port: int) -> None:
        """Make a cable's end a port of this switch."""
        self._ask(RTM_NEWLINK, 0, _interface(port) + _attribute(IFLA_MASTER, struct.pack("=I", _SWITCH)))
        self.set_up(port, True)

    def limit(self, interface: int, bytes_per_s: int) -> None:
        """Let no more leave by an interface: a token bucket, see tc-tbf(8)."""
        burst_us = int(_BURST_BYTES / bytes_per_s * 1e6)
        rate = struct.pack("=BBHhHI", 0, 1, 0, 0, 0, bytes_per_s)
        parms = rate + bytes(len(rate)) + struct.pack("=III", _QUEUE_BYTES, int(burst_us * _TICKS_PER_US), 0)
        burst = _attribute(TCA_TBF_BURST, struct.pack("=I", _BURST_BYTES))
        options = _attribute(TCA_OPTIONS, _attribute(TCA_TBF_PARMS, parms) + burst)
        head = struct.pack("=BxHiIII", socket.AF_UNSPEC, 0, interface, _FIRST_QDISC, _ROOT, 0)
        body = head + _attribute(TCA_KIND, b"tbf\0") + options
        self._ask(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, body)

    def set_up(self, interface: int, up: bool) -> None:
        self._ask(RTM_NEWLINK, 0, _interface(interface, IFF_UP if up else 0, IFF_UP))

    def send_astray(self, address: str) -> None:
        """Let what goes to an address go to a network card that nobody has."""
        card = _attribute(NDA_LLADDR, _NOBODYS_CARD)
        self._ask(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, _neighbour(address) + card)

    def send_right(self, address: str) -> None:
        self._ask(RTM_DELNEIGH, 0, _neighbour(address))

    def _ask(self, kind: int, flags: int, body: bytes) -> None:
        size = struct.calcsize("=IHHII") + len(body)
        self._netlink.send(struct.pack("=IHHII", size, kind, flags | NLM_F_REQUEST | NLM_F_ACK, 1, 0) + body)
        (code,) = struct.unpack_from("=i", self._netlink.recv(4096), struct.calcsize("=IHHII"))
        if code:
            raise OSError(-code, os.strerror(-code))

    def close(self) -> None:
        if self._descriptor >= 0:
            self._netlink.close()
            os.close(self._descriptor)
            self._descriptor = -1


def _interface(number: int, flags: int = 0, changed: int = 0) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, number, flags, changed)


def _neighbour(address: str) -> bytes:
    head = struct.pack("=BxxxiHBB", socket.AF_INET, _CABLE, NUD_PERMANENT, 0, 0)
    return head + _attribute(NDA_DST, socket.inet_aton(address))


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _call(function: str, *arguments: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, function)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{function}: {os.strerror(code)}")


def _on_a_thread(make: Callable[[], _End]) -> _End:
    """What `make` gives on a thread of its own, whose namespace may change."""
    results: list[_End | OSError] = []

    def run() -> None:
        try:
            results.append(make())
        except OSError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(results[0], OSError):
        raise results[0]
    return results[0]
