"""What a process has received stays valid in the children that it forks, or is out of their reach."""

import errno
import faulthandler
import os
import select
import signal

import pytest

import arena_peers
from arena_peers import OWNER, eventually, lease
from open_files import descriptors
from rlinf_scheduler.comm.shm import kernel
from rlinf_scheduler.comm.shm.arena import Arena
from rlinf_scheduler.comm.shm.foreign import COPIED_BYTES, clear_dead_slots

DEADLINE_S = 60.0
MIB = 1 << 20


@pytest.fixture
def arena():
    arena = Arena(OWNER, 8 * MIB, arena_peers.Inline())
    yield arena
    arena.close()


@pytest.fixture
def opened():
    opened = arena_peers.readers()
    yield opened
    opened.close()


class Child:
    """A forked child that runs functions of a dictionary when it is told to."""

    def __init__(self, **functions):
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            faulthandler.disable()  # one child is meant to be killed
            os.close(self._orders)
            os.close(self._answers)
            for name in os.fdopen(orders):
                try:
                    value = functions[name.strip()]()
                except Exception as error:  # noqa: BLE001 - the test reads it
                    value = repr(error)
                os.write(answers, f"{value}\n".encode())
            os._exit(0)
        os.close(orders)
        os.close(answers)

    def call(self, name):
        os.write(self._orders, f"{name}\n".encode())
        assert select.select([self._answers], [], [], DEADLINE_S)[0], f"the child does not answer '{name}'"
        return os.read(self._answers, 1000).decode().strip()

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        return self.end()

    def end(self):
        """Close its orders and wait for it; how it ended."""
        os.close(self._orders)
        os.close(self._answers)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def full_of(arena, opened, value):
    """An array of a block that this process holds: [array], to be cleared."""
    block = arena.allocate(MIB)
    block.memory[:] = value
    return [lease(opened, arena, block).array()]


def use_everything(arena, value):
    """Write to all memory that nobody uses."""
    blocks = []
    while (block := arena.allocate(MIB)) is not None:
        block.memory[:] = value
        blocks.append(block)
    return len(blocks)


def test_what_a_parent_drops_stays_as_it_is_in_its_child(arena, opened):
    arrays = full_of(arena, opened, 7)
    child = Child(contents=lambda: arena_peers.contents(arrays[0]), drop=arrays.clear)
    arrays.clear()
    assert use_everything(arena, 99) == 7
    assert child.call("contents") == "7"
    assert not arena.unused()
    assert child.call("drop") == "None"
    assert arena.unused()
    assert child.end() == 0


def test_what_a_child_drops_stays_as_it_is_in_its_parent(arena, opened):
    arrays = full_of(arena, opened, 7)
    child = Child(drop=arrays.clear)
    assert child.call("drop") == "None"
    assert use_everything(arena, 99) == 7
    assert arena_peers.contents(arrays[0]) == 7
    assert child.end() == 0
    assert use_everything(arena, 99) == 7
    assert arena_peers.contents(arrays[0]) == 7
    arrays.clear()
    assert arena.unused()


def test_what_a_killed_child_held_is_free(arena, opened):
    arrays = full_of(arena, opened, 7)
    child = Child()
    arrays.clear()
    assert not arena.unused()
    child.kill()
    eventually(arena.unused)


def test_a_childs_child_holds_too_when_both_others_have_dropped(arena, opened):
    arrays = full_of(arena, opened, 7)
    answers, theirs = os.pipe()
    go_on, ours = os.pipe()

    def fork():
        if os.fork() == 0:
            os.close(ours)
            os.read(go_on, 1)
            os.write(theirs, str(arena_peers.contents(arrays[0])).encode())
            os._exit(0)

    child = Child(fork=fork, drop=arrays.clear)
    assert child.call("fork") == "None"
    assert child.call("drop") == "None"
    assert child.end() == 0
    arrays.clear()
    assert use_everything(arena, 99) == 7
    os.write(ours, b"x")
    assert os.read(answers, 10) == b"7"
    eventually(arena.unused)
    for fd in (answers, theirs, go_on, ours):
        os.close(fd)


def test_a_child_that_outlives_its_parent_and_the_owner_keeps_what_it_has(tmp_path):
    arena = Arena(OWNER, 8 * MIB, arena_peers.Inline())
    report = tmp_path / "report"
    os.mkfifo(report)
    sink = os.open(report, os.O_RDWR)
    block = arena.allocate(MIB)
    block.memory[:] = 7
    reader = arena_peers.Reader(arena)
    reader.hold(block)
    index = block.index
    child = reader.call("fork", str(report))
    del block
    os.set_inheritable(sink, False)
    # The reader's end ends its child too: so what it is to do is told before.
    reader.call("tell_child", 0, f"contents {index}")
    assert os.read(sink, 100) == b"7\n"
    reader.call("drop", index)
    use_everything(arena, 99)
    reader.call("tell_child", 0, f"contents {index}")
    assert os.read(sink, 100) == b"7\n"
    arena.close()
    reader.call("tell_child", 0, f"contents {index}")
    assert os.read(sink, 100) == b"7\n"
    reader.kill()
    eventually(lambda: not arena_peers.is_alive(child))
    os.close(sink)
    reader.close()


def test_private_maps_stay_in_a_child(arena, opened):
    block = arena.allocate(COPIED_BYTES + MIB)
    block.memory[:] = 7
    arrays = [lease(opened, arena, block, shared=True).array()]
    arrays[0][0] = 1
    del block
    child = Child(contents=lambda: (int(arrays[0][0]), arena_peers.contents(arrays[0][1:])))
    arrays.clear()
    assert use_everything(arena, 99) == 5
    assert child.call("contents") == "(1, 7)"
    child.end()
    assert arena.unused()


def test_a_child_for_which_nothing_could_be_held_in_time_is_killed_rather_than_reads_something_else(
    arena, opened, monkeypatch
):
    arrays = full_of(arena, opened, 7)
    go_on, ours = os.pipe()
    open_of, parent = kernel.open_of, os.getpid()

    def refuse_here(pid, fd):
        if os.getpid() == parent:
            raise OSError(errno.EMFILE, "too many open files")
        os.read(go_on, 1)  # the child holds later than its parent drops
        return open_of(os.getpid(), fd)

    with monkeypatch.context() as patch:
        patch.setattr(kernel, "open_of", refuse_here)
        child = Child(contents=lambda: arena_peers.contents(arrays[0]))
    arrays.clear()
    assert use_everything(arena, 99) == 8
    os.write(ours, bytes(64))  # also for arenas that tests before this one hold something of
    os.write(child._orders, b"contents\n")
    assert child.end() == -signal.SIGSEGV
    os.close(go_on)
    os.close(ours)


def test_a_child_holds_by_itself_what_its_parent_could_not_hold_for_it(arena, opened, monkeypatch):
    arrays = full_of(arena, opened, 7)
    open_of, parent = kernel.open_of, os.getpid()

    def refuse_here(pid, fd):
        if os.getpid() == parent:
            raise OSError(errno.EMFILE, "too many open files")
        return open_of(os.getpid(), fd)

    with monkeypatch.context() as patch:
        patch.setattr(kernel, "open_of", refuse_here)
        child = Child(contents=lambda: arena_peers.contents(arrays[0]))
    assert child.call("contents") == "7"
    arrays.clear()
    assert use_everything(arena, 99) == 7
    assert child.call("contents") == "7"
    child.end()


def test_a_fork_leaves_the_parent_no_descriptor_and_no_slot(arena, opened):
    arrays = full_of(arena, opened, 7)
    open_before, num_slots = descriptors(), len(arena._table.slots())
    for _ in range(3):
        Child().end()
    clear_dead_slots(arena.fd, arena._table)
    assert len(arena._table.slots()) == num_slots
    eventually(lambda: descriptors() <= open_before)  # others in this process may open some for a moment
    arrays.clear()


def test_what_a_process_held_ends_with_it_though_a_child_that_does_not_use_it_lives(arena):
    """The child has its own hold on what its parent held: it ends when it drops it, or by its end."""
    block = arena.allocate(100)
    reader = arena_peers.Reader(arena)
    child = reader.call("fork", os.devnull)
    reader.hold(block)  # after the fork: the child has nothing of it
    del block
    assert not arena.unused()
    os.kill(child, signal.SIGSTOP)
    reader.kill()
    eventually(arena.unused)
    assert arena_peers.is_alive(child)
    os.kill(child, signal.SIGKILL)
    reader.close()
