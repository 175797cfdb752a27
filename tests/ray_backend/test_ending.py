"""How a driver that was interrupted ends, whatever threads it has: on real processes, without Ray."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, os, signal, sys, threading
from rlinf_scheduler.ray_backend import ending

ending.THREADS_GRACE_S = 0.1
closed, told = threading.Event(), threading.Event()

def say(text):
    print(text, flush=True)

def close():
    say("closed")
    closed.set()

def wait():
    {waits_for}.wait()

atexit.register(say, "at exit")
ending.close_when_interrupted(close)
ending.exit_on_sigterm()
log = open(sys.argv[1], "w")
log.write("not flushed")
threading.Thread(target=wait).start()
{end}
"""
WAIT = "say('ready'); threading.Event().wait()"


def start(path, *, end=WAIT, waits_for="told"):
    program = PROGRAM.format(end=end, waits_for=waits_for)
    errors = path.with_suffix(".errors")
    with errors.open("w") as file:
        return subprocess.Popen(
            [sys.executable, "-c", program, path], stdout=subprocess.PIPE, stderr=file, text=True
        )


def run(path, number=None, **options):
    """What a program says, from when it is ready if it gets a signal then, how it ended, and its errors."""
    with start(path, **options) as process:
        try:
            if number is not None:
                assert process.stdout.readline() == "ready\n"
                process.send_signal(number)
            said = process.stdout.read()
            process.wait(60)
        finally:
            process.kill()
    return said.split("\n")[:-1], process.returncode, path.with_suffix(".errors").read_text()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
@pytest.mark.parametrize("waits_for", ["told", "closed"])
def test_no_thread_keeps_an_interrupted_driver_and_its_cluster(tmp_path, number, status, waits_for):
    said, returned, errors = run(tmp_path / "log", number, waits_for=waits_for)
    assert said == ["closed", "at exit"]
    assert returned == status
    assert (tmp_path / "log").read_text() == "not flushed"
    assert ("KeyboardInterrupt" in errors) == (number is signal.SIGINT)


@pytest.mark.parametrize(
    ("end", "status"), [("told.set()", 0), ("told.set(); sys.exit(3)", 3), ("told.set(); 1 / 0", 1)]
)
def test_another_end_waits_for_its_threads_and_has_its_own_status(tmp_path, end, status):
    said, returned, _ = run(tmp_path / "log", end=end)
    assert (said, returned) == (["at exit"], status)


def test_a_failure_that_comes_while_all_is_undone_lets_that_end_and_is_the_status(tmp_path):
    end = """
def fail():
    undoing.wait()
    ending.end_failed()

def undo():
    undoing.set()
    os.read(come, 1)  # the signal has come, and has interrupted nothing
    say("undone")

undoing = threading.Event()
come, coming = os.pipe()  # a handler takes no lock that it may have interrupted
threading.Thread(target=fail, daemon=True).start()
flag = ending._exit
signal.signal(signal.SIGTERM, lambda *args: (os.write(coming, b'.'), flag(*args)))
ending._exit = signal.getsignal(signal.SIGTERM)
atexit.register(undo)
told.set()
"""
    said, returned, errors = run(tmp_path / "log", end=end)
    assert (said, returned) == (["undone", "closed"], 1)  # what was registered before is left out
    assert "SystemExit" not in errors


def test_the_status_of_an_interruption_is_its_own_whatever_is_compiled_at_the_end(tmp_path):
    end = "told.set(); atexit.register(exec, 'None'); " + WAIT
    assert run(tmp_path / "log", signal.SIGINT, end=end)[1] == -signal.SIGINT


def test_an_interruption_asks_no_object_for_its_class(tmp_path):
    asking = "Odd = type('Odd', (), {'__class__': property(lambda _: print('asked', flush=True)), '__slots__': ['it']})"
    end = f"{asking}; odd = Odd(); odd.it = [odd]; told.set(); {WAIT}"
    assert "asked" not in run(tmp_path / "log", signal.SIGINT, end=end)[0]


def test_an_interruption_that_the_program_handles_is_its_own_affair(tmp_path):
    end = f"""
try:
    {WAIT}
except KeyboardInterrupt:
    say("handled")
told.set()
"""
    assert run(tmp_path / "log", signal.SIGINT, end=end)[:2] == (["handled", "at exit"], 0)
