"""A node's facts, gathered on it. Every one of them is looked at; none is taken from a table of what should be."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from rlinf_scheduler.comm.pull.agent import PullError, net_devices, nixl_stack
from rlinf_scheduler.comm.pull.records import OFF, VARIABLE
from rlinf_scheduler.comm.shm import kernel
from rlinf_scheduler.doctor.facts import (
    AcceleratorFacts,
    LimitFacts,
    MemoryFacts,
    NodeFacts,
    Software,
    TokenFacts,
)
from rlinf_scheduler.errors import ClusterError, ConfigError
from rlinf_scheduler.hardware.vendors import (
    NODE_RANK_VARIABLE,
    SIMULATED_VARIABLE,
    find_accelerators,
    find_devices,
    match_devices,
    vendors,
)
from rlinf_scheduler.ray_backend.authentication import (
    MODE_VARIABLE,
    find_tokens,
    readable_by_others,
    token_in_rays_file,
)

_LIBRARIES = ("cloudpickle", "msgspec", "nixl", "numpy", "torch")
_SHM = Path("/dev/shm")  # noqa: S108 - looked at, not written to
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))
_CHILD_S = 30.0
# A process of this user that has memory without a name, as those that lend theirs have.
_LENDER = "import os, sys; print(os.memfd_create('rlinf-doctor'), flush=True); sys.stdin.read()"


def gather_facts(
    *,
    ip: str,
    node_id: str = "",
    is_head: bool = False,
    resources: Mapping[str, float] | None = None,
    ray_folder: str = "",
    environment: Mapping[str, str] = os.environ,
) -> NodeFacts:
    """The facts of the node that this process runs on.

    Args:
        node_id: Ray's id of it; "" where it is no node.
        resources: what Ray counted there; None where Ray is not asked.
        ray_folder: where Ray keeps its files; "": this user's folder for temporary ones is looked at.
        environment: what the node's processes start with.
    """
    hostname = platform.node()
    return NodeFacts(
        node_id=node_id,
        ip=ip,
        hostname=hostname,
        is_head=is_head,
        is_simulated=bool(environment.get(SIMULATED_VARIABLE, "").strip()),
        node_rank=environment.get(NODE_RANK_VARIABLE, "").strip(),
        own_addresses=_addresses(hostname),
        versions=versions(),
        token=_token(environment),
        memory=_memory(resources, ray_folder),
        limits=_limits(),
        accelerators=_accelerators(environment, resources),
        pull_error=_pull_error(environment, ip),
    )


def versions() -> Software:
    """Of what this process runs on."""
    libraries = {name: found for name in _LIBRARIES if (found := _version(name))}
    return Software(platform.python_version(), _version("ray"), _version("rlinf-scheduler"), libraries)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _addresses(hostname: str) -> tuple[str, ...]:
    try:
        return tuple(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(hostname, None)))
    except OSError:
        return ()


def _pull_error(environment: Mapping[str, str], ip: str) -> str:
    if environment.get(VARIABLE, OFF) == OFF:
        return ""
    try:
        net_devices(ip)
    except PullError as error:
        return str(error)
    return "" if nixl_stack() else "nixl is not installed"


def _token(environment: Mapping[str, str]) -> TokenFacts:
    mode = environment.get(MODE_VARIABLE, "").strip().lower() or "disabled"
    rays = token_in_rays_file(environment)
    turned_on_by = "" if rays is None else rays.source
    try:
        tokens = find_tokens(environment)
    except ClusterError as error:
        return TokenFacts(mode, source=str(error), turned_on_by=turned_on_by)
    if not tokens:
        return TokenFacts(mode)
    used = tokens[0]
    return TokenFacts(mode, used.fingerprint, used.source, readable_by_others(used), turned_on_by)


def _memory(resources: Mapping[str, float] | None, ray_folder: str) -> MemoryFacts:
    shm_bytes, shm_free_bytes = _room(_SHM)
    folder = ray_folder or tempfile.gettempdir()
    store = None if resources is None else int(resources.get("object_store_memory", 0))
    return MemoryFacts(
        shm_bytes=shm_bytes,
        shm_free_bytes=shm_free_bytes,
        ray_store_bytes=store,
        memfd_error=_memfd_error(),
        temporary_folder=folder,
        temporary_free_bytes=_room(Path(folder))[1],
        others_can_write=bool(ray_folder) and open_to_others(Path(ray_folder)),
    )


def _room(path: Path) -> tuple[int | None, int | None]:
    """How many bytes a file system has, and how many are free."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None, None
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


def open_to_others(path: Path) -> bool:
    """Whether other users can write into a directory: they may, and every directory above lets them pass."""
    try:
        modes = [stat.S_IMODE(place.stat().st_mode) for place in (path, *path.parents)]
    except OSError:
        return False
    writable, passable = stat.S_IWGRP | stat.S_IWOTH, stat.S_IXGRP | stat.S_IXOTH
    return bool(modes[0] & writable) and all(mode & passable for mode in modes)


def _memfd_error() -> str:
    try:
        os.close(kernel.create(kernel.PAGE_BYTES))
    except OSError as error:
        return str(error)
    return ""


def _limits() -> LimitFacts:
    pidfd_error, peer_error = _peer_errors()
    return LimitFacts(
        open_files=_limit(resource.RLIMIT_NOFILE),
        processes=_limit(resource.RLIMIT_NPROC),
        pidfd_error=pidfd_error,
        peer_memory_error=peer_error,
        ptrace_scope=_ptrace_scope(),
    )


def _limit(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def _ptrace_scope() -> int | None:
    try:
        return int(_YAMA.read_text())
    except (OSError, ValueError):
        return None


def _peer_errors() -> tuple[str, str]:
    """Why another process of this user cannot be watched, and why its memory cannot be opened; "" where it can."""
    with _lender() as (pid, descriptor):
        pidfd_error, peer_error = "", ""
        try:
            os.close(os.pidfd_open(pid))
        except OSError as error:
            pidfd_error = str(error)
        try:
            os.close(kernel.open_of(pid, descriptor))
        except OSError as error:
            peer_error = str(error)
        return pidfd_error, peer_error


@contextlib.contextmanager
def _lender() -> Iterator[tuple[int, int]]:
    command = [sys.executable, "-I", "-S", "-c", _LENDER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:  # noqa: S603 - our own
        try:
            line = child.stdout.readline() if child.stdout else b""
            yield child.pid, int(line or -1)
        finally:
            child.communicate(timeout=_CHILD_S)


def _accelerators(environment: Mapping[str, str], resources: Mapping[str, float] | None) -> AcceleratorFacts:
    counted = {} if resources is None else resources
    try:
        found = find_accelerators(environment, counted)
    except (ClusterError, ConfigError):
        return AcceleratorFacts()
    if environment.get(SIMULATED_VARIABLE, "").strip():
        return AcceleratorFacts(found.type, found.count, None, found.mask)
    vendor, num_files = found.type, None
    if not vendor:
        vendor, num_files = _vendor_by_files()
    else:
        num_files = _device_files(vendor)
    devices = find_devices(vendor) if vendor else None
    names = found.mask or ()
    unmatched: tuple[str, ...] = ()
    if devices and names:
        unmatched = tuple(
            n for n, device in zip(names, match_devices(names, devices), strict=True) if not device
        )
    return AcceleratorFacts(
        vendor,
        found.count,
        num_files,
        found.mask,
        None if devices is None else tuple(device.uuid or str(device.index) for device in devices),
        unmatched,
        _driver(),
    )


def _vendor_by_files() -> tuple[str, int | None]:
    """The vendor whose devices the kernel shows, though nobody counted any."""
    for vendor in vendors():
        number = _device_files(vendor.name)
        if number:
            return vendor.name, number
    return "", None


def _device_files(name: str) -> int | None:
    for vendor in vendors():
        # One file for all devices does not count them.
        if vendor.name == name and vendor.device_files and "[" in vendor.device_files:
            return sum(1 for path in Path("/dev").glob(vendor.device_files) if path.name[-1].isdecimal())
    return None


def _driver() -> str:
    for path in _DRIVERS:
        with contextlib.suppress(OSError):
            words = path.read_text().partition("\n")[0].split()
            return next((word for word in words if word[:1].isdecimal()), "")
    return ""
