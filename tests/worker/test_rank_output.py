"""What ranks print and log: attributable, ahead of the answers, in a file each; on real processes without Ray."""

import contextlib
import ctypes
import fcntl
import io
import logging
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlinf.scheduler import PackedPlacementStrategy, Worker
from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.errors import ConfigError, LaunchError, WorkerDied, WorkerError
from rlinf_scheduler.events import WorkerPrinted
from rlinf_scheduler.host import output, protocol
from rlinf_scheduler.host.output import LogFolder
from rlinf_scheduler.session import Session, current_session
from waits import wait_until

DEADLINE_S = 60.0


class Speaker(Worker):
    """Prints and logs in many ways."""

    def wait_for(self, path):
        wait_until(Path(path).exists)

    def touch(self, path):
        Path(path).touch()

    def say(self, *lines):
        print(*lines, sep="\n")  # noqa: T201
        return self._rank

    def say_in_c(self):
        ctypes.CDLL(None).puts(b"from C")
        ctypes.CDLL(None).fflush(None)
        os.write(2, b"to standard error\n")

    def fail(self, text):
        print(text)  # noqa: T201
        raise ValueError

    def bar(self):
        for step in range(5):
            sys.stderr.write(f"\rstep {step}")
        sys.stderr.write("\n")

    def flood(self, num_lines):
        """Prints more than is shown at once before anybody looks."""
        over = threading.Event()
        current_session().messenger.submit(lambda: over.wait(DEADLINE_S))
        for number in range(num_lines):
            sys.stdout.write(f"line {number} {'x' * 100}\n")
        over.set()

    def spill(self, num_lines):
        for _ in range(num_lines):
            sys.stdout.write("x" * 1500 + "\n")

    def log(self):
        self.log_info("mine")
        logging.getLogger("some.library").info("theirs")
        logging.getLogger("some.library").debug("too little")

    def speak_without_end(self):
        sys.stdout.write("no end of line")
        sys.stdout.flush()

    def log_in_a_child(self):
        child = os.fork()
        if child == 0:
            self.log_info("from the child")
            os._exit(0)
        os.waitpid(child, 0)

    def crash(self):
        sys.stdout.write("just before\n")
        sys.stderr.write("why\n")
        os.abort()

    def title(self):
        return Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode(), os.getpid()


@pytest.fixture
def speaking(forked_job, tmp_path):
    """A job whose ranks have files."""
    forked_job.session.provide(LogFolder, LogFolder(str(tmp_path / "logs" / "job")))
    return forked_job


def launch(job, num_ranks=1, **options):
    strategy = PackedPlacementStrategy(0, num_ranks - 1)
    return Speaker.create_group().launch(job, strategy, name="speaker", **options)


def shown(capsys, *, until=None, stream="out"):
    """Lines on a stream of the driver's, once some of them are there."""
    lines = []

    def is_there():
        lines.extend(getattr(capsys.readouterr(), stream).splitlines())
        return until is None or any(until in line for line in lines)

    wait_until(is_there)
    return lines


def test_every_line_has_its_rank_and_is_shown_before_the_answer(speaking, capsys):
    group = launch(speaking, 4)
    assert group.say("first", "second").wait(DEADLINE_S) == [0, 1, 2, 3]
    speaking.session.log_bus.flush(DEADLINE_S)
    lines = capsys.readouterr().out.splitlines()
    for rank in range(4):
        assert [line for line in lines if line.startswith(f"[speaker:{rank}]")] == [
            f"[speaker:{rank}] first",
            f"[speaker:{rank}] second",
        ]


def test_of_many_ranks_that_speak_at_once_every_line_is_whole_and_in_its_ranks_order(speaking, capsys):
    ranks, texts = range(64), [f"line {number}" for number in range(20)]
    home, together = speaking.session.home, threading.Barrier(len(ranks))

    def speak(session, rank):
        together.wait(DEADLINE_S)
        for text in texts:
            session.messenger.notify(home, protocol.OUTPUT, protocol.OutputLines("many", rank, [text]))

    with contextlib.ExitStack() as stack:
        for rank in ranks:
            session = Session(speaking.session.secret, f"many:{rank}", home=home)
            stack.callback(session.close)
            thread = threading.Thread(target=speak, args=(session, rank))
            thread.start()
            stack.callback(thread.join)
        told = []
        while len(told) < len(ranks) * len(texts):
            told += shown(capsys, until=texts[-1])
    for rank in ranks:
        own = [line for line in told if line.startswith(f"[many:{rank}] ")]
        assert own == [f"[many:{rank}] {text}" for text in texts]


def test_whoever_writes_is_heard_on_the_stream_that_it_wrote_to(speaking, capsys):
    launch(speaking).say_in_c().wait(DEADLINE_S)
    speaking.session.log_bus.flush(DEADLINE_S)
    assert capsys.readouterr() == ("[speaker:0] from C\n", "[speaker:0] to standard error\n")


def test_what_a_failing_method_printed_is_shown_too(speaking, capsys):
    with pytest.raises(WorkerError):
        launch(speaking).fail("just before").wait(DEADLINE_S)
    assert shown(capsys, until="before") == ["[speaker:0] just before"]


def test_an_error_about_a_dead_rank_has_what_it_wrote_last(speaking, tmp_path):
    group = launch(speaking)
    for _ in range(2):  # the call that was under way, and a later one
        with pytest.raises(WorkerDied) as caught:
            group.crash().wait(DEADLINE_S)
        head, out, just_before, err, why = str(caught.value).splitlines()
        assert head.startswith("rank 0 of 'speaker' died")
        assert out == f"it had written last ({tmp_path}/logs/job/speaker-0.log):"
        assert just_before == "  just before"
        assert err == f"it had written last ({tmp_path}/logs/job/speaker-0.err):"
        assert why == "  why"


def test_a_progress_bar_is_one_line(speaking, capsys):
    launch(speaking).bar().wait(DEADLINE_S)
    assert shown(capsys, until="step", stream="err") == ["[speaker:0] step 4"]


def test_a_line_without_an_end_is_shown_when_the_rank_ends(speaking, capsys):
    group = launch(speaking)
    group.speak_without_end().wait(DEADLINE_S)
    group.terminate()
    assert shown(capsys, until="no end") == ["[speaker:0] no end of line"]


def test_a_flood_is_shown_in_part_and_written_whole(speaking, capsys, tmp_path):
    num_lines = 40_000
    launch(speaking).flood(num_lines).wait(DEADLINE_S)
    lines = shown(capsys, until=f"line {num_lines - 1} ")
    assert len(lines) < num_lines
    assert any(line.startswith("[speaker:0] ... ") and "MiB more, in " in line for line in lines)
    assert (tmp_path / "logs/job/speaker-0.log").read_text().count("line ") == num_lines


def test_what_a_driver_that_is_stopped_does_not_take_stays_in_the_file(speaking, capsys, tmp_path):
    ranks = launch(speaking, 2)
    group = ranks.execute_on(0)
    group.wait_for(tmp_path / "begins")
    # Each sends what it printed ahead of its answer: together more than may be under way.
    calls = [group.say(*[f"call {number} " + "x" * 1000] * 50) for number in range(200)]
    group.touch(tmp_path / "printed")
    goes_on, stands = threading.Event(), threading.Event()
    ranks.execute_on(1).say("what was asked before has been sent").wait(DEADLINE_S)
    speaking.session.messenger.submit(lambda: (stands.set(), goes_on.wait(DEADLINE_S)))
    assert stands.wait(DEADLINE_S)
    try:
        (tmp_path / "begins").touch()
        wait_until((tmp_path / "printed").exists)
    finally:
        goes_on.set()
    for call in calls:
        call.wait(DEADLINE_S)
    lines = shown(capsys, until="call 199 ")
    assert any(" MiB more, in " in line for line in lines)
    assert sum(map(len, lines)) < 6 << 20
    assert (tmp_path / "logs/job/speaker-0.log").read_text().count("call ") == 200 * 50


def test_the_file_of_a_rank_that_prints_on_and_on_stays_within_its_bounds(speaking, capsys, tmp_path):
    group, path = launch(speaking), tmp_path / "logs/job/speaker-0.log"
    for _ in range(2):
        group.spill(40_000).wait(DEADLINE_S)
        wait_until(lambda: path.stat().st_blocks * 512 < 33 << 20)
        assert path.stat().st_size >= 16 << 20
    group.say("the last one").wait(DEADLINE_S)
    assert any(line == "[speaker:0] the last one" for line in shown(capsys, until="the last one"))
    assert not path.with_suffix(".log.1").exists()


def test_the_file_has_what_was_printed_and_what_was_logged_and_only_its_user_reads_it(
    speaking, capsys, tmp_path
):
    group = launch(speaking, log_level="info")
    group.say("printed").wait(DEADLINE_S)
    group.log().wait(DEADLINE_S)
    path = tmp_path / "logs/job/speaker-0.log"
    written = path.read_text()
    for text in ("printed", "INFO mine", "INFO some.library: theirs"):
        assert text in written
    assert "too little" not in written
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert shown(capsys, until="printed") == ["[speaker:0] printed"]  # what was logged is no output


def test_libraries_are_heard_from_the_level_that_was_asked_for(speaking, caplog):
    with caplog.at_level(logging.DEBUG, "rlinf.worker"):
        launch(speaking, log_level="INFO").log().wait(DEADLINE_S)
        speaking.session.log_bus.flush(DEADLINE_S)
    assert caplog.messages == ["[speaker:0] mine", "[speaker:0] some.library: theirs"]


@pytest.mark.parametrize("level", ["loud", -1, True])
def test_a_level_that_there_is_not_is_refused_before_a_process_starts(speaking, level):
    with pytest.raises(ConfigError, match="log_level="):
        launch(speaking, log_level=level)
    assert speaking.processes.started == []


def test_listeners_get_lines_as_events(speaking):
    events = []
    speaking.session.bus.subscribe(events.append)
    launch(speaking).say("a", "b").wait(DEADLINE_S)

    def lines():  # it may be looked at between the two
        printed = [event for event in events if isinstance(event, WorkerPrinted)]
        return [(event.group, event.rank, line) for event in printed for line in event.lines]

    wait_until(lambda: len(lines()) == 2)
    assert lines() == [("speaker", 0, "a"), ("speaker", 0, "b")]


def test_a_forked_child_logs_as_its_rank(speaking, capsys):
    launch(speaking, log_level="INFO").log_in_a_child().wait(DEADLINE_S)
    assert shown(capsys, until="from the child", stream="err") == ["[speaker:0] INFO from the child"]


def test_a_rank_that_dies_in_its_constructor_has_said_why(speaking):
    class Crashing(Speaker):
        def __init__(self):
            super().__init__()
            sys.stdout.write("no such simulator\n")
            os.abort()

    with pytest.raises(LaunchError, match="no such simulator"):
        Crashing.create_group().launch(speaking, PackedPlacementStrategy(0, 0), name="speaker")


def test_what_was_written_in_an_earlier_life_is_not_said_of_a_later_one(speaking):
    first = launch(speaking)
    first.say("of the first life").wait(DEADLINE_S)
    first.terminate()
    with pytest.raises(WorkerDied) as caught:
        launch(speaking).crash().wait(DEADLINE_S)
    assert "just before" in str(caught.value)
    assert "first life" not in str(caught.value)


def test_ps_shows_the_rank_and_its_method(speaking):
    ((title, pid),) = launch(speaking).title().wait(DEADLINE_S)
    assert title == "speaker:0 title()"
    wait_until(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0") == b"speaker:0")


def test_ps_shows_each_of_several_calls_until_it_has_ended(monkeypatch):
    titles = []
    monkeypatch.setitem(sys.modules, "ray._raylet", SimpleNamespace(setproctitle=titles.append))
    tell = output.tell_method(WorkerAddress("rollout", 1), None)
    other = threading.Thread(target=lambda: [tell("update"), tell("")])
    tell("serve")
    other.start()
    other.join()
    tell("")
    assert titles == [
        "rollout:1",
        "rollout:1 serve()",
        "rollout:1 serve() update()",
        "rollout:1 serve()",
        "rollout:1",
    ]


def test_the_oldest_of_many_jobs_are_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "NUM_KEPT_JOBS", 3)
    home = tmp_path / "logs"
    held = [output.open_folder(home / f"2026010{number}-1") for number in range(2)]
    os.close(held.pop())
    for number in range(2, 5):
        os.close(output.open_folder(home / f"2026010{number}-1"))
    # The first is still written to.
    assert sorted(folder.name[:8] for folder in home.iterdir()) == [
        "20260100",
        "20260102",
        "20260103",
        "20260104",
    ]
    os.close(held.pop())


def test_a_folder_that_is_deleted_while_it_is_taken_is_made_again(tmp_path, monkeypatch):
    folder, flock, taken = tmp_path / "jobs" / "one", fcntl.flock, []

    def deleted_before(descriptor, how):
        if not taken:
            folder.rmdir()
        taken.append(descriptor)
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", deleted_before)
    held = output.open_folder(folder)
    assert folder.is_dir()
    assert descriptors_of(folder) == [held]
    os.close(held)


def descriptors_of(path):
    """Those that this process has of a path, also of what had it before."""
    links = ((int(each), os.path.realpath(f"/proc/self/fd/{each}")) for each in os.listdir("/proc/self/fd"))
    return [descriptor for descriptor, link in links if link.startswith(str(path))]


def test_a_rank_that_can_have_no_file_runs_all_the_same(forked_job, tmp_path):
    (tmp_path / "logs").write_text("no folder")
    forked_job.session.provide(LogFolder, LogFolder(str(tmp_path / "logs" / "job")))
    assert launch(forked_job).say("heard nowhere").wait(DEADLINE_S) == [0]


def test_a_rank_prints_and_logs_on_while_the_disk_of_its_files_is_full(
    forked_job, small_disk, capsys, caplog
):
    forked_job.session.provide(LogFolder, LogFolder(str(small_disk.path / "job")))
    with caplog.at_level(logging.INFO, "rlinf.worker"):
        group = launch(forked_job)
        group.say("before").wait(DEADLINE_S)
        small_disk.fill()
        assert group.say(*(f"line {number:06d}" for number in range(2000))).wait(DEADLINE_S) == [0]
        group.log().wait(DEADLINE_S)
        small_disk.clear()
        group.say("after").wait(DEADLINE_S)
        lines = shown(capsys, until="after")
        forked_job.session.log_bus.flush(DEADLINE_S)
    assert any("bytes are missing here: the disk took no more" in line for line in lines)
    assert "[speaker:0] mine" in caplog.messages


def test_a_rank_that_starts_on_a_full_disk_is_heard_when_there_is_room(forked_job, small_disk, capsys):
    folder = small_disk.path / "job"
    folder.mkdir(mode=0o700)
    small_disk.fill()
    forked_job.session.provide(LogFolder, LogFolder(str(folder)))
    group = launch(forked_job)
    assert group.say("lost").wait(DEADLINE_S) == [0]
    small_disk.clear()
    group.say("heard").wait(DEADLINE_S)
    assert "[speaker:0] heard" in shown(capsys, until="heard")


def test_a_line_that_is_too_long_is_shown_in_part_and_the_next_one_as_it_is(speaking, capsys, tmp_path):
    launch(speaking).say("x" * 200_000, "next").wait(DEADLINE_S)
    long, after = shown(capsys, until="next")
    assert long.endswith(f"x ... 191,808 bytes more, in {tmp_path}/logs/job/speaker-0.log")
    assert after == "[speaker:0] next"


def test_letters_that_the_drivers_output_has_not_are_shown_as_escapes(speaking, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    launch(speaking).say("loss 0.1 ✓", "größer").wait(DEADLINE_S)
    wait_until(lambda: written.getvalue().count(b"\n") == 2)
    assert written.getvalue().decode("latin-1").splitlines() == [
        "[speaker:0] loss 0.1 \\u2713",
        "[speaker:0] größer",
    ]


@pytest.mark.parametrize("output", ["closed", None, "full"])
def test_a_driver_whose_output_cannot_be_written_to_says_so_once(
    speaking, monkeypatch, caplog, tmp_path, output
):
    stream = None if output is None else open("/dev/full" if output == "full" else os.devnull, "w")  # noqa: SIM115
    if output == "closed":
        stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    group = launch(speaking)
    for _ in range(3):
        group.say("lost").wait(DEADLINE_S)
        speaking.session.log_bus.flush(DEADLINE_S)
    (told,) = (record.getMessage() for record in caplog.records if "not shown" in record.getMessage())
    assert told.startswith("what workers write to sys.stdout is not shown any more: ")
    assert not any("listener failed" in message for message in caplog.messages)
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    group.say("shown").wait(DEADLINE_S)
    wait_until(lambda: written.getvalue() == "[speaker:0] shown\n")
    if output == "full":
        with contextlib.suppress(OSError):
            stream.close()


def test_log_lines_of_ranks_that_cannot_be_shown_are_told_of_once(speaking, monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("rlinf.worker"), "propagate", False)
    with open(os.devnull, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
    group = launch(speaking)
    for _ in range(3):
        group.log().wait(DEADLINE_S)
        speaking.session.log_bus.flush(DEADLINE_S)
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "what workers write to sys.stderr is not shown any more"
    ]


def test_nested_groups_have_files_too():
    folder = LogFolder("/logs/job")
    assert folder.file_of(WorkerAddress("outer:0/inner", 3)) == "/logs/job/outer-0+inner-3.log"


def test_ray_may_have_the_output(monkeypatch):
    monkeypatch.setenv("RLINF_RANK_OUTPUT", "ray")
    assert LogFolder.fresh().file_of(WorkerAddress("g", 0)) == ""
