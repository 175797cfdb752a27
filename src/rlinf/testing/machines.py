"""Two machines on this one: network namespaces with real addresses of their own and a cable between them.

Processes in different namespaces have different machine ids and reach each other over TCP only. Linux, and the
right to make namespaces (root has it), are all that is needed: the cable is laid with netlink messages, see
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
from types import TracebackType

CLONE_NEWNET = 0x4000_0000
IFF_UP = 1
IFLA_IFNAME, IFLA_LINKINFO, IFLA_NET_NS_FD = 3, 18, 28
IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_INFO_PEER = 1, 2, 1
IFA_ADDRESS, IFA_LOCAL = 1, 2
RTM_NEWLINK, RTM_NEWADDR = 16, 20
NLM_F_REQUEST, NLM_F_ACK, NLM_F_EXCL, NLM_F_CREATE = 1, 4, 0x200, 0x400

_LOOPBACK = 1  # the number of the interface, in every namespace
_CABLE = 100
_PREFIX_BITS = 24


class MachinesUnavailable(Exception):
    """Network namespaces cannot be made here; the text says why."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One of the two; picklable, for child processes that are to run on it.

    Attributes:
        address: its IP address.
        namespace: the file that stands for its network namespace, as long as the pair is open.
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


class MachinePair:
    """Two machines and the cable between them; a context manager.

    Attributes:
        left, right: the machines.

    Raises:
        MachinesUnavailable: namespaces, or the cable, cannot be made here.
    """

    def __init__(self) -> None:
        self._ends: list[_End] = []
        try:
            for _ in range(2):
                self._ends.append(_on_a_thread(_End))
            first, second = self._ends
            first.lay_cable_to(second)
            first.switch_on("192.0.2.1")  # addresses of RFC 5737, which are nobody's
            second.switch_on("192.0.2.2")
        except OSError as error:
            self.close()
            message = f"two network namespaces with a veth pair cannot be made here: {error}"
            raise MachinesUnavailable(message) from error
        self.left = Machine("192.0.2.1", first.path)
        self.right = Machine("192.0.2.2", second.path)

    def unplug(self) -> None:
        """Take the cable out: nothing gets through, and nobody is told."""
        self._ends[1].set_up(_CABLE, False)

    def plug_in(self) -> None:
        """Put the cable back."""
        self._ends[1].set_up(_CABLE, True)

    def close(self) -> None:
        """Give up the namespaces; they end with the last process in them."""
        for end in self._ends:
            end.close()

    def __enter__(self) -> MachinePair:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _End:
    """A namespace and what configures it: sockets stay in the namespace in which they were made."""

    def __init__(self) -> None:
        _call("unshare", CLONE_NEWNET)
        self._descriptor = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)

    def lay_cable_to(self, other: _End) -> None:
        name = _attribute(IFLA_IFNAME, b"cable\0")
        there = _attribute(IFLA_NET_NS_FD, struct.pack("=I", other._descriptor))
        peer = _attribute(IFLA_INFO_DATA, _attribute(VETH_INFO_PEER, _interface(_CABLE) + name + there))
        info = _attribute(IFLA_LINKINFO, _attribute(IFLA_INFO_KIND, b"veth\0") + peer)
        self._ask(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, _interface(_CABLE) + name + info)

    def switch_on(self, address: str) -> None:
        self.set_up(_LOOPBACK, True)
        packed = socket.inet_aton(address)
        head = struct.pack("=BBBBI", socket.AF_INET, _PREFIX_BITS, 0, 0, _CABLE)
        body = head + _attribute(IFA_LOCAL, packed) + _attribute(IFA_ADDRESS, packed)
        self._ask(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, body)
        self.set_up(_CABLE, True)

    def set_up(self, interface: int, up: bool) -> None:
        self._ask(RTM_NEWLINK, 0, _interface(interface, IFF_UP if up else 0, IFF_UP))

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
