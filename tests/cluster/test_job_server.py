"""The job server of a job without a Ray: what it does as long as nothing is open."""

import sys
import threading
import time
from types import SimpleNamespace

import pytest

from rlinf_scheduler import extension, job_server
from rlinf_scheduler.config import ClusterConfig
from rlinf_scheduler.detached import take_part
from rlinf_scheduler.errors import ClusterTimeout
from rlinf_scheduler.job_server import JobServer, JobServerSpec


@pytest.fixture
def ended(monkeypatch):
    """Set when the job server ends itself."""
    told = threading.Event()
    monkeypatch.setattr(job_server.ray, "get_runtime_context", lambda: SimpleNamespace(current_actor=None))
    monkeypatch.setattr(job_server, "_end", lambda _actor: told.set())
    monkeypatch.setattr(job_server, "UNOPENED_S", 0.01)
    return told


def test_a_job_server_that_nobody_has_had_opened_ends(ended):
    assert JobServer().record() == b""
    assert ended.wait(60)


def test_a_job_server_that_cannot_be_opened_ends_when_it_has_tried(ended, monkeypatch):
    early, opening = [], threading.Event()

    def look(*_args):
        opening.set()
        early.append(ended.wait(0.2))
        raise LookupError("too few nodes")

    monkeypatch.setattr(job_server, "look_at_nodes", look)
    # It looks whether it is opened as it begins, and not again before it is.
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: opening.wait(60) and time.sleep(0.02))
    monkeypatch.setattr(job_server, "time", clock)
    order = job_server.pickle.dumps(
        JobServerSpec("job", "program", 99, 1.0, job_server.pickle.dumps(ClusterConfig()))
    )
    with pytest.raises(LookupError, match="too few nodes"):
        JobServer().open(order)
    assert early == [False]
    assert ended.wait(60)


def test_a_job_server_has_the_extension_and_the_log_folder_of_the_driver_that_begins_its_job(
    ended, monkeypatch, tmp_path
):
    (tmp_path / "kept_extension.py").write_text("WHO = 'the job server'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(extension.EXTENSION_VARIABLE, "")  # as it was, afterwards
    monkeypatch.setattr(extension, "_loaded", set())
    opened = []

    def open_home(*_args, log_folder, **_options):
        opened.append((log_folder, "kept_extension" in sys.modules, extension.extension_named()))
        raise LookupError("far enough")

    monkeypatch.setattr(job_server, "look_at_nodes", lambda *_: [])
    monkeypatch.setattr(job_server, "open_home", open_home)
    config = job_server.pickle.dumps(ClusterConfig())
    order = JobServerSpec("job", "program", None, 1.0, config, "/logs", "kept_extension")
    with pytest.raises(LookupError, match="far enough"):
        JobServer().open(job_server.pickle.dumps(order))
    sys.modules.pop("kept_extension")
    assert opened == [("/logs", True, "kept_extension")]


def test_a_job_server_whose_job_ends_answers_nobody_any_more(ended, monkeypatch):
    made = JobServer()
    made._session = SimpleNamespace(closed=True)
    monkeypatch.setattr(made, "wait_for_end", lambda: (_ for _ in ()).throw(InterruptedError))
    with pytest.raises(InterruptedError):
        made.record()


def test_a_trace_that_cannot_be_written_is_refused_before_a_job_is_begun(monkeypatch, tmp_path):
    monkeypatch.setenv("RLINF_TRACE", str(tmp_path / "missing" / "run.json"))
    with pytest.raises(FileNotFoundError, match=r"run\.json"):
        take_part("serving", ClusterConfig(), None, "127.0.0.1:1", 0.1)


def test_where_no_job_is_begun_the_file_of_its_trace_is_as_it_was(monkeypatch, tmp_path):
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    old.write_text("a trace")
    # Tests before it may have left this process connected to a Ray, which would be joined.
    monkeypatch.setattr(job_server.ray, "is_initialized", lambda: False)
    for path in (new, old):
        monkeypatch.setenv("RLINF_TRACE", str(path))
        with pytest.raises(ClusterTimeout):
            take_part("serving", ClusterConfig(), None, "127.0.0.1:1", 0.1)
    assert not new.exists()
    assert old.read_text() == "a trace"
