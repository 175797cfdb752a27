"""What the machine itself can do, measured in the processes that the benchmarks compare: the bare limits."""

from __future__ import annotations

import mmap
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

_CONNECT_TIMEOUT_S = 30.0
PING_BYTES = 16


def random_bytes(size: int) -> bytes:
    """The same random bytes for a size each time: pages of zeros may be one page, that is always in the cache."""
    return np.random.default_rng(size).bytes(size)


def make_item(kind: str, size: int) -> Any:
    """What is moved: "bytes", a "list" of 1 KiB each, an "array", a "tensor", a "dict" of 20: `size` bytes in all."""
    if kind == "dict":
        return {f"layer{index}": make_item("tensor", size // 20) for index in range(20)}
    content = random_bytes(size)
    if kind == "list":
        return [content[start : start + 1024] for start in range(0, size, 1024)]
    if kind == "bytes":
        return content
    array = np.frombuffer(bytearray(content), np.uint8)
    return array if kind == "array" else torch.from_numpy(array)


def same_content(item: Any, kind: str, size: int) -> bool:
    """Whether `item` is what `make_item` makes."""
    expected = make_item(kind, size)
    if kind == "dict":
        return list(item) == list(expected) and all(
            torch.equal(item[name], expected[name]) for name in expected
        )
    return item == expected if kind in ("bytes", "list") else bool((item == expected).all())


class Bare:
    """Mixed into workers and plain actors alike: both sides are measured by the same code."""

    _listener: socket.socket | None = None
    _pipe: socket.socket | None = None
    _made: tuple[str, int, Any] | None = None

    def pid(self) -> int:
        """The process's number."""
        return os.getpid()

    def item(self, kind: str, size: int) -> Any:
        """The item of a workload; the last one is kept, so that making it is not measured twice."""
        if self._made is None or self._made[:2] != (kind, size):
            self._made = (kind, size, make_item(kind, size))
        return self._made[2]

    def listen(self, path: str) -> None:
        """Wait for `dial` on a Unix socket."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(1)

    def dial(self, path: str) -> None:
        """Connect to the process that listens at `path`."""
        self._pipe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._pipe.settimeout(_CONNECT_TIMEOUT_S)
        self._pipe.connect(path)
        # Without a timeout Python reads with one system call: this is to be as fast as the machine allows.
        self._pipe.setblocking(True)

    def pipe(self) -> socket.socket:
        """The connection between the two."""
        if self._pipe is None and self._listener is not None:
            self._listener.settimeout(_CONNECT_TIMEOUT_S)
            self._pipe, _ = self._listener.accept()
            self._pipe.setblocking(True)
        if self._pipe is None:
            raise RuntimeError("neither listen() nor dial() was called")
        return self._pipe

    def stay_on(self, processor: int | None) -> None:
        """Run this thread on one of the machine's processors only; None: on any."""
        os.sched_setaffinity(0, range(os.cpu_count() or 1) if processor is None else [processor])

    def pong(self, count: int, size: int = PING_BYTES) -> None:
        """Answer what `ping` sends, `count` times."""
        pipe, buffer = self.pipe(), memoryview(bytearray(size))
        for _ in range(count):
            _fill(buffer, pipe)
            pipe.sendall(buffer[:PING_BYTES])

    def ping(self, count: int, size: int = PING_BYTES, pause_s: float = 0.0) -> list[float]:
        """The seconds of `count` round trips, each of `size` bytes there and 16 back, with a pause before each."""
        pipe, took = self.pipe(), []
        content, answer = random_bytes(size), memoryview(bytearray(PING_BYTES))
        for _ in range(count):
            if pause_s:
                time.sleep(pause_s)
            started = time.perf_counter()
            pipe.sendall(content)
            _fill(answer, pipe)
            took.append(time.perf_counter() - started)
        return took

    def memcpy(self, size: int, count: int) -> float:
        """Seconds of `count` copies of `size` bytes between the same two warm buffers."""
        source = np.frombuffer(random_bytes(size), np.uint8)
        target = source.copy()
        started = time.perf_counter()
        for _ in range(count):
            np.copyto(target, source)
        return time.perf_counter() - started

    def memcpy_into_fresh_pages(self, size: int, count: int) -> float:
        """Seconds of `count` copies of `size` bytes, each into shared memory that was never touched before."""
        source = np.frombuffer(random_bytes(size), np.uint8)
        took = 0.0
        for _ in range(count):
            fresh = mmap.mmap(-1, size)
            target = np.frombuffer(fresh, np.uint8)
            started = time.perf_counter()
            np.copyto(target, source)
            took += time.perf_counter() - started
            del target
            fresh.close()
        return took


def _fill(buffer: memoryview, pipe: socket.socket) -> None:
    while buffer:
        buffer = buffer[pipe.recv_into(buffer) :]


def held_bytes(pids: Sequence[int]) -> int:
    """Memory that these processes hold together: their private pages, and the memfds that they have open, each once.

    From `/proc/PID/smaps_rollup` (Linux 5.9 and later) and the blocks that are allocated to each memfd.
    """
    private, shared = 0, {}
    for pid in pids:
        private += _anonymous_bytes(pid)
        shared.update(_memfds(pid))
    return private + sum(shared.values())


def _anonymous_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not say Pss_Anon in smaps_rollup")


def _memfds(pid: int) -> dict[tuple[int, int], int]:
    found = {}
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(entry.path).startswith("/memfd:"):
                status = os.stat(entry.path)
                found[(status.st_dev, status.st_ino)] = status.st_blocks * 512
        except FileNotFoundError:
            continue  # closed since it was listed
    return found
