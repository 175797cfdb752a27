"""The page on several machines, followed to the letter on two: namespaces with addresses and homes of their own."""

import contextlib
import os
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from machine_fixtures import MachinePair
from page_programs import BLOCK, programs_of, save
from rlinf.testing.machines import MachinesUnavailable
from waits import wait_until

ROOT = Path(__file__).parents[2]
PAGE, FEW_PORTS = (
    (ROOT / "docs" / "how-to" / name).read_text(encoding="utf-8")
    for name in ("run-on-several-machines.md", "open-few-ports.md")
)
COMMANDS = re.compile(r"# on the (first|second) machine(.*)\n(.+)\n")
RLINF = "import sys; from rlinf_scheduler.cli.main import main; sys.argv[0] = 'rlinf'; main()"


class Shell:
    """A terminal on a machine, with a home folder and a folder for temporary files of its own."""

    def __init__(self, machine, folder, programs):
        self.machine = machine
        self.home, self.temporary = folder / "home", folder / "tmp"
        self.home.mkdir(parents=True)
        self.temporary.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "RLINF_"))}
        self.environment = {
            **kept,
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
        }

    def run(self, command, cwd=None):
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=cwd or self.home,
            env=self.environment,
            preexec_fn=self.machine.enter,
            capture_output=True,
            text=True,
            timeout=150,
        )


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def shells():
    """Terminals on two machines with a cable between them; what they start ends with the test."""
    # Ray's sockets have long names: a short folder.
    with tempfile.TemporaryDirectory(prefix="rl", dir="/tmp") as folder:
        programs = Path(folder, "bin")
        programs.mkdir()
        script(programs / "rlinf", f'exec {sys.executable} -c "{RLINF}" "$@"')
        script(programs / "python", f'exec {sys.executable} "$@"')
        # To the first machine's home, whoever is asked for; there is no daemon here.
        script(programs / "ssh", f'shift; cd {folder}/first/home && exec "$@"')
        try:
            pair = MachinePair()
        except MachinesUnavailable as error:
            pytest.skip(str(error))
        with pair:
            first, second = (
                Shell(machine, Path(folder, name), programs)
                for name, machine in (("first", pair.left), ("second", pair.right))
            )
            yield {"first": first, "second": second}
            if processes_with(folder):  # the test has failed
                for shell in (second, first):
                    shell.run("rlinf node stop --grace-s 0")


def steps(page=PAGE):
    return [step.groups() for block in BLOCK.finditer(page) for step in COMMANDS.finditer(block[2])]


def test_the_page_says_where_each_command_runs():
    blocks = [block[2] for block in BLOCK.finditer(PAGE) if block[1] == "sh"]
    assert len(steps()) == len(blocks) == 8


@pytest.mark.ray(own=True)
def test_the_page_can_be_followed_to_the_letter(shells, tmp_path):
    save(PAGE, tmp_path)
    (program,) = programs_of(PAGE)
    first, second = shells["first"], shells["second"]
    (_, _, start), (_, _, with_token), (_, _, without), (_, _, look), (_, _, run), (_, _, other), *stops = (
        steps()
    )

    assert_done(first.run(start))
    assert not (first.home / ".ray").exists()
    token = first.home / ".rlinf" / "ray_token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    folder = first.temporary / f"rlinf-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder / "ray" / "session_latest").exists()

    refused = second.run(without)
    assert refused.returncode == 2
    assert "mode 'token'" in refused.stderr
    assert not (second.home / ".rlinf").exists()

    # The command of the other page is that of this one with fixed ports: both in one, a node takes seconds to start.
    _, (_, _, with_few_ports), (_, _, look_at_ports) = steps(FEW_PORTS)
    assert with_few_ports.startswith(without)
    assert_done(second.run(with_token + with_few_ports.removeprefix(without)))
    assert (second.home / ".rlinf" / "ray_token").read_text() == token.read_text()

    assert look_at_ports.startswith(look)
    assert_done(first.run(look_at_ports))
    assert assert_done(first.run(run, tmp_path)) == program.output

    assert assert_done(first.run(other)) == "2 nodes\n"

    for where, _, stop in stops:
        assert "stopped node" in assert_done(shells[where].run(stop))
    wait_until(lambda: processes_with(str(first.home.parent.parent)) == [])


def processes_with(text):
    """The command lines of living processes in which it stands."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().decode(errors="replace"))
    return [line for line in found if text in line]


def assert_done(done):
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
