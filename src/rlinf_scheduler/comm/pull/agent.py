"""NIXL 1.5, as far as pulling needs it: an agent with UCX. Everything is on the thread that pulls.

It is made on what lies below NIXL's own class for Python, whose thread spins (`pthrDelay` 0), a core in every process.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import os
import socket
import struct
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

DEVICES_VARIABLE = "UCX_NET_DEVICES"
# Its thread sleeps until something comes, and looks by itself so often, in microseconds.
_LOOK_EVERY_US = 100_000
_SIOCGIFADDR = 0x8915
_RDMA = Path("/sys/class/infiniband")


class PullError(Exception):
    """An object cannot be pulled; the text says why."""


class Agent:
    """This process, as NIXL knows it by `name`; UCX listens at `address`, nowhere else. Its methods raise PullError."""

    def __init__(self, name: str, address: str) -> None:
        self._nixl = nixl = _load()
        config = nixl.nixlAgentConfig()
        config.useProgThread = True
        config.pthrDelay = _LOOK_EVERY_US
        # Its thread and the one that pulls.
        config.syncMode = nixl.NIXL_THREAD_SYNC_STRICT
        with _as_pull_error("no agent of NIXL can be made"), _listening_on(net_devices(address)):
            self._agent = nixl.nixlAgent(name, config)
            self._ucx = self._agent.createBackend("UCX", {})

    def keep_for_ever(self) -> None:
        """Never take it down: that waits for its thread, which a forked child has not, and for reads under way."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._agent))

    def register(self, address: int, size_bytes: int) -> tuple[Any, bytes]:
        """Let memory be read by others, and written by reads of this process: what undoes that, what others need."""
        with _as_pull_error(f"{size_bytes >> 20} MiB of shared memory cannot be registered"):
            rows = self._nixl.nixlRegDList(self._nixl.DRAM_SEG, [(address, size_bytes, 0, "")])
            self._agent.registerMem(rows, [self._ucx])
            return rows, self._agent.getLocalPartialMD(rows, True, [self._ucx])

    def deregister(self, rows: Any) -> None:
        """Undo `register`."""
        with _as_pull_error("shared memory stays registered"):
            self._agent.deregisterMem(rows, [self._ucx])

    def add(self, metadata: bytes) -> None:
        """Know memory of another agent. What fails leaves NIXL with a half of it, for which there is no remedy."""
        with _as_pull_error("what was offered is not understood"):
            self._agent.loadRemoteMD(metadata)

    def remove(self, name: str) -> None:
        """Forget another agent; nothing may be on its way from there."""
        with contextlib.suppress(PullError), _as_pull_error(""):
            self._agent.invalidateRemoteMD(name)

    def begin(self, name: str, there: int, here: int, size_bytes: int) -> int:
        """Begin to read memory of another agent; what `is_done` and `release` take."""
        rows = (self._nixl.nixlXferDList(self._nixl.DRAM_SEG, [(at, size_bytes, 0)]) for at in (here, there))
        with _as_pull_error("it cannot be read"):
            read: int = self._agent.createXferReq(self._nixl.NIXL_READ, *rows, name, b"", [self._ucx])
            self._agent.postXferReq(read, b"")
            return read

    def is_done(self, read: int) -> bool:
        """Whether everything has been read; after a PullError it never will be, and nothing more is written here."""
        with _as_pull_error("reading it failed"):
            return bool(self._agent.getXferStatus(read) == self._nixl.NIXL_SUCCESS)

    def release(self, read: int) -> None:
        """Forget a read that has ended; one that has not may go on to write."""
        with contextlib.suppress(PullError), _as_pull_error(""):
            self._agent.releaseXferReq(read)


def nixl_stack() -> str:
    """Return which NIXL is installed, such as "nixl 1.5.1"; "" for none. Nothing is loaded."""
    try:
        return f"nixl {metadata.version('nixl')}"
    except metadata.PackageNotFoundError:
        return ""


def net_devices(address: str) -> str:
    """Return what UCX may use: the interface with an address, and cards for RDMA; PullError if none has it."""
    interfaces = [name for _, name in socket.if_nameindex() if _address_of(name) == address]
    if not interfaces:
        raise PullError(f"no network interface has the address {address}")
    cards = [f"{port.parents[1].name}:{port.name}" for port in sorted(_RDMA.glob("*/ports/*"))]
    return ",".join(interfaces + cards)


def _address_of(interface: str) -> str:
    question = struct.pack("256s", interface.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, contextlib.suppress(OSError):
        return socket.inet_ntoa(fcntl.ioctl(any_socket, _SIOCGIFADDR, question)[20:24])
    return ""


@contextlib.contextmanager
def _listening_on(devices: str) -> Iterator[None]:
    """Let UCX, which reads the environment when an agent is made, use these devices; a user's own choice stays."""
    if chosen := DEVICES_VARIABLE not in os.environ:
        os.environ[DEVICES_VARIABLE] = devices
    try:
        yield
    finally:
        if chosen:
            del os.environ[DEVICES_VARIABLE]


def _load() -> Any:
    raises = logging.raiseExceptions
    with _as_pull_error("NIXL cannot be loaded; pip install 'nixl>=1.5.1,<1.6'"):
        try:
            import nixl  # noqa: PLC0415 - optional, and slow
        finally:
            # It changes that of the program.
            logging.raiseExceptions = raises
        return nixl._bindings


@contextlib.contextmanager
def _as_pull_error(what: str) -> Iterator[None]:
    try:
        yield
    except PullError:
        raise
    except Exception as error:  # NIXL's own have no class in common
        raise PullError(f"{what} ({type(error).__name__}: {error})") from error
