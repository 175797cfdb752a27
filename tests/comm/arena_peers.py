"""What the other processes of the tests of shared memory do, and how they are looked at from outside."""

import contextlib
import multiprocessing
import os
from pathlib import Path

from rlinf.scheduler.comm.arena import Loan, open_arena

DEADLINE_S = 20.0
ARENA = "memfd:rlinf-arena"


def num_maps(pid):
    """How many maps of arenas a process has."""
    try:
        return Path(f"/proc/{pid}/maps").read_text().count(ARENA)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def num_open(pid):
    """How many descriptors of arenas a process has open."""
    count = 0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                count += ARENA in os.readlink(f"/proc/{pid}/fd/{name}")
    return count


def shared_bytes():
    """How much shared memory the machine has in use."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Shmem:"))


def is_alive(pid):
    """Whether a process runs."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def _borrow_and_fork(pipe, owner_id, pid, fd, fields):
    loan = Loan(open_arena(owner_id, pid, fd), *fields, False, lambda owner: None)
    loan.array()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(EOFError):
            pipe.recv()
        os._exit(0)
    pipe.send(child)
    with contextlib.suppress(EOFError):
        pipe.recv()


@contextlib.contextmanager
def borrower_with_a_child(owner_id, arena, block):
    """A process that has borrowed a block and forked a child: (the process, the child's pid)."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    fields = (block.offset, block.size_bytes, block.token)
    args = (theirs, owner_id, os.getpid(), arena.fd, fields)
    process = context.Process(target=_borrow_and_fork, args=args, daemon=True)
    process.start()
    theirs.close()
    try:
        assert ours.poll(DEADLINE_S)
        yield process, ours.recv()
    finally:
        ours.close()  # ends both
        process.kill()
        process.join(DEADLINE_S)
