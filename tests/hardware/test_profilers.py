"""What starts a rank under a profiler, and windows of capture."""

import sys
from types import SimpleNamespace

import pytest

from rlinf_scheduler.hardware.profilers import CaptureWindow, ProfilingConfig


def test_nsight_is_told_where_the_report_goes_unless_the_user_says_it():
    config = ProfilingConfig("nsight", output_dir="/reports")
    report = config.report_of("rollout/a", 3)
    assert report == "/reports/rlinf-profile-rollout_a-3-%p"
    assert config.command("/opt/nsys", "py", report) == f"/opt/nsys profile -o {report} py"
    own = ProfilingConfig("nsight", options=(("output", "mine"),))
    assert own.command("nsys", "py", report) == "nsys profile --output=mine py"


def test_words_with_blanks_come_through_a_shell():
    config = ProfilingConfig("nsight", options=(("o", "x"), ("t", "a b")))
    assert config.command("nsys", "my python", "") == "nsys profile -o x -t 'a b' 'my python'"


def test_the_other_profiler_is_told_by_variables():
    config = ProfilingConfig(
        "rocprof_sys",
        options=(("F", "true"), ("format", "json")),
        env=(("ROCPROFSYS_OUTPUT_PATH", "/mine"), ("A", "1")),
    )
    assert config.command("rocprof-sys-python", "py", "r") == "rocprof-sys-python -F true --format=json -- py"
    assert config.variables("/reports/actor-0") == {
        "ROCPROFSYS_TIME_OUTPUT": "false",
        "ROCPROFSYS_OUTPUT_PATH": "/mine",
        "ROCPROFSYS_OUTPUT_PREFIX": "actor-0",
        "A": "1",
    }


@pytest.fixture
def calls(monkeypatch):
    told = []

    def tell(name):
        return lambda *args: told.append((name, *args))

    profiler = SimpleNamespace(start=tell("start"), stop=tell("stop"))
    nvtx = SimpleNamespace(range_push=tell("push"), range_pop=tell("pop"))
    cuda = SimpleNamespace(profiler=profiler, nvtx=nvtx)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    return told


def test_a_profiler_that_does_not_start_has_opened_no_window(calls):
    def fail():
        raise RuntimeError("no CUPTI")

    sys.modules["torch"].cuda.profiler.start = fail
    window = CaptureWindow()
    with pytest.raises(RuntimeError, match="CUPTI"):
        window.open()
    window.close()
    assert calls == []


def test_a_window_opens_and_closes_once(calls):
    window = CaptureWindow()
    window.close()
    window.open()
    window.open()
    window.close()
    window.close()
    assert calls == [("start",), ("stop",)]


def test_a_block_has_its_name_in_the_report_while_a_window_is_open(calls):
    window = CaptureWindow()
    with window.range("before"):
        pass
    window.open()
    with pytest.raises(ZeroDivisionError), window.range("step"):
        raise ZeroDivisionError
    assert calls == [("start",), ("push", "step"), ("pop",)]
