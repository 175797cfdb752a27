"""`make rlinf`: what it makes of tests that pass, fail, hang and end their process, in a tiny checkout."""

import time
from pathlib import Path

import pytest

import import_all
import rlinf_checkout
from small_checkout import plain, write

pytestmark = pytest.mark.system

TESTS = """
    import os, pathlib, signal, time
    import pytest
    from rlinf.runners import places

    quick = pytest.mark.timeout(100)  # it may be held up

    @quick
    def test_good(): assert "checkout" not in places()
    @quick
    def test_bad(): assert 1 + 1 == 3
    @quick
    def test_on_purpose(): raise ValueError
    def test_sleeps(): time.sleep(600)
    @quick
    def test_ends(): os._exit(3)
    def test_stuck():
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pathlib.Path(os.environ["STUCK"]).write_text(str(os.getpid()))
        time.sleep(600)
    @quick
    def test_after(): pass
"""


class Clock:
    """Goes on by minutes at each look while the process of that number, which is in a file, is stuck."""

    def __init__(self, file):
        self._file, self._ahead_s = file, 0.0

    def monotonic(self):
        number = self._file.read_text() if self._file.exists() else ""
        if number and Path("/proc", number).exists():
            self._ahead_s += rlinf_checkout.SILENT_S
        return time.monotonic() + self._ahead_s


@pytest.fixture
def checkout(tmp_path):
    folder = write(tmp_path / "checkout")
    return write(
        folder,
        {
            "tests/unit_tests/pytest.ini": "[pytest]",
            "tests/unit_tests/test_some.py": TESTS,
            "tests/unit_tests/test_none.py": "from rlinf.scheduler import Gone",
            "tests/unit_tests/test_other.py": "",
        },
    )


def test_every_test_has_an_outcome_and_a_hang_is_one(checkout, tmp_path, monkeypatch):
    stuck = tmp_path / "stuck"
    monkeypatch.setenv("STUCK", str(stuck))
    monkeypatch.setattr(rlinf_checkout, "TEST_LIMIT_S", 1)
    monkeypatch.setattr(rlinf_checkout, "time", Clock(stuck))
    files = list(rlinf_checkout.test_files(checkout, []))
    assert [file.name for file in files] == ["test_none.py"]  # the only one that imports the scheduler
    some = checkout / "tests/unit_tests/test_some.py"
    reasons = [{"test": "test_some.py::test_on_*", "reason": "ours is better"}]
    results = {
        file.name: rlinf_checkout.judged(rlinf_checkout.outcomes_of(file, checkout, (), tmp_path), reasons)
        for file in (*files, some)
    }
    assert {test.partition("::")[2]: outcome for test, (outcome, _) in results["test_some.py"].items()} == {
        "test_good": "passed",
        "test_bad": "failed",
        "test_on_purpose": "different",
        "test_sleeps": "hung",
        "test_ends": "hung",
        "test_stuck": "hung",
        "test_after": "passed",
    }
    (why,) = [why for outcome, why in results["test_none.py"].values() if outcome == "not collected"]
    assert "FaceError: RLinf of" in why
    text = "\n".join(rlinf_checkout.table(results, {"modules": 0, "failed": {}, "stood_in": []}))
    assert "| test_some.py | 2 | 1 | 1 | 3 |" in text
    assert "- `test_some.py::test_ends`: its process ended with 3" in text
    assert "- `test_some.py::test_on_purpose`: ours is better" in text


def test_modules_that_lack_something_of_ours_are_told_from_others(checkout, tmp_path):
    write(
        checkout,
        {
            "rlinf/gone.py": "from rlinf.scheduler import Gone",
            "rlinf/lacking.py": "from rlinf.scheduler import Worker\nWorker.no_such_thing",
            "rlinf/models.py": "import no_such_library.a as n\nclass M(n.Module): ...\n@n.wraps\ndef f(): ...\nf()",
            "rlinf/broken.py": "import rlinf\n1 / 0",
            "examples/train.py": "import helper\nfrom rlinf.models import M",
            "examples/helper.py": "from rlinf.models import M",
        },
    )
    found = rlinf_checkout.imports_of(checkout, tmp_path)
    assert found["stood_in"] == ["no_such_library"]
    assert {name: rlinf_checkout.is_ours(why) for name, why in found["failed"].items()} == {
        "rlinf.gone": True,
        "rlinf.lacking": True,
        "rlinf.broken": False,
    }


def test_third_parties_are_those_that_are_not_there(checkout):
    write(checkout, {"rlinf/uses.py": "import json, numpy, no_such_library.part, rlinf.runners"})
    assert import_all.third_parties(checkout) == ["no_such_library"]


def test_without_a_checkout_it_says_how_it_is_called(tmp_path):
    program = Path(rlinf_checkout.__file__)
    nothing, no_checkout = plain(program), plain(program, tmp_path)
    assert (nothing.returncode, no_checkout.returncode) == (2, 2)
    assert nothing.stderr.startswith("which checkout of RLinf: make rlinf RLINF=/path/to/checkout")
    assert no_checkout.stderr.startswith(f"{tmp_path} is no checkout of RLinf: make rlinf RLINF=")
