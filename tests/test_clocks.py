"""The sources, use by use: some parts take clock and timers from the runtime at hand, and ask no clock beside it."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "rlinf_scheduler"
PARTS = ("channel", "comm", "durable", "mailbox", "session", "weights")

# What tells the time, lets time pass, or does something later. Processor time, which is measured for reports, does not.
_EVENT_LOOP = "an event loop of asyncio"
CLOCKS = {
    f"{module}.{name}"
    for module, names in {
        "time": "clock_gettime clock_gettime_ns monotonic monotonic_ns perf_counter perf_counter_ns sleep time time_ns",
        "threading": "Timer",
        "asyncio": "sleep timeout timeout_at wait_for",
        "sched": "scheduler",
        "signal": "alarm setitimer",
        _EVENT_LOOP: "call_at call_later time",
    }.items()
    for name in names.split()
}
FINDS_LOOP = {"get_event_loop", "get_running_loop", "new_event_loop"}

# The only uses there are: file, how many, and why no runtime can be asked. The list becomes shorter, never longer.
KERNELS = "how long a thread waits in the kernel, which counts by its own clock"
DATE = "a date in a file, for people"
EXCEPTIONS = {
    "comm/loop.py": (1, "the real clock"),
    "comm/promise.py": (1, KERNELS),
    "comm/rundir.py": (4, "a file that is locked, before there is a messenger; and the age of one"),
    "comm/waits.py": (1, "time that is accounted for begins and ends by one clock"),
    "durable/checkpoint_files.py": (1, DATE),
    "durable/checkpoints.py": (1, DATE),
    "session/job_file.py": (1, DATE),
}


def uses_of(tree):
    """Return the line and the name of each use of a clock that is no runtime's."""
    meant = _names_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = _EVENT_LOOP if _finds_loop(node.value) else meant.get(getattr(node.value, "id", None))
            name = f"{owner}.{node.attr}"
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            name = meant.get(node.id)
        else:
            continue
        if name in CLOCKS:
            yield node.lineno, name


def _names_of(tree):
    """Return what names of a module stand for, of modules, of what is in them, and of event loops."""
    meant = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            meant.update({alias.asname or alias.name: alias.name for alias in node.names})
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            meant.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        elif isinstance(node, ast.Assign) and _finds_loop(node.value):
            meant.update({target.id: _EVENT_LOOP for target in node.targets if isinstance(target, ast.Name)})
    return meant


def _finds_loop(node):
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    return getattr(function, "attr", getattr(function, "id", "")) in FINDS_LOOP


def uses_in_sources():
    """Return the uses of each file that has any."""
    files = [path for part in PARTS for path in sorted((SOURCE / part).rglob("*.py"))]
    found = {str(path.relative_to(SOURCE)): sorted(uses_of(ast.parse(path.read_text()))) for path in files}
    return {path: uses for path, uses in found.items() if uses}


def test_no_module_asks_a_clock_beside_its_runtime():
    offenders = [
        f"src/rlinf_scheduler/{path}:{line} uses {name}"
        for path, uses in uses_in_sources().items()
        if len(uses) > EXCEPTIONS.get(path, (0, ""))[0]
        for line, name in uses
    ]
    advice = "take `now` and `call_later` of the messenger, or of the loop below it (decision 062)"
    assert not offenders, "\n".join([*offenders, advice])


def test_no_exception_is_listed_that_is_not_needed():
    needed = {path: len(uses) for path, uses in uses_in_sources().items()}
    listed = {path: number for path, (number, _) in EXCEPTIONS.items()}
    assert {path: number for path, number in listed.items() if number > needed.get(path, 0)} == {}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import time\nuntil = time.monotonic() + 1", "time.monotonic"),
        ("import time as clock\nbegan = clock.perf_counter_ns()", "time.perf_counter_ns"),
        ("from time import monotonic as now\nbegan = now()", "time.monotonic"),
        ("import time\ndef wait(now=time.monotonic): ...", "time.monotonic"),
        ("import threading\nthreading.Timer(1, print).start()", "threading.Timer"),
        (
            "import asyncio\nasyncio.get_running_loop().call_later(1, print)",
            "an event loop of asyncio.call_later",
        ),
        ("import asyncio\nloop = asyncio.get_running_loop()\nloop.time()", "an event loop of asyncio.time"),
        ("import asyncio\nasync def wait(): await asyncio.wait_for(x, 1)", "asyncio.wait_for"),
    ],
)
def test_a_use_is_found_in_any_form(source, name):
    assert [found for _, found in uses_of(ast.parse(source))] == [name]


def test_what_a_runtime_is_asked_is_no_use():
    source = """
import time
def begin(messenger, loop):
    loop.call_later(1, print)
    return messenger.now(), time.thread_time(), time.strftime("%H")
"""
    assert list(uses_of(ast.parse(source))) == []
