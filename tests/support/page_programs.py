"""The programs of a page: its fenced blocks, as files that a reader would save, run in the order of the page.

- A `python` block is a whole program. Its first line may name its file: `# train.py`.
- A `yaml` or `toml` block whose first line names a file is saved beside it, before any program runs.
- A `text` block right after a program is what that prints.
- A program with a cluster writes `Cluster(simulate="2x4")` (or a config with it): the tests run these on one cluster.
- One with `Cluster(job=...)` is a program of its own on the Ray of that cluster.
- One that imports the simulator, which is not installed, runs as one that was saved at the root of a clone.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from programs import run_program
from rlinf.scheduler import Channel, WorkerGroup
from rlinf_scheduler.channel import channels_of
from rlinf_scheduler.session import current_or_none

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROOT = Path(__file__).parents[2]
FILE_NAME = re.compile(r"# ([\w.-]+\.\w+)\n")
SAVED = ("yaml", "toml")


@dataclass(frozen=True)
class Program:
    """A program of a page, and what it should print (None: the page does not say)."""

    file: str
    code: str
    output: str | None = None

    @property
    def needs_ray(self):
        return "Cluster(" in self.code

    @property
    def needs_clone(self):
        return "from simulator import" in self.code

    @property
    def takes_part(self):
        return "Cluster(job=" in self.code


def _named(text):
    match = FILE_NAME.match(text)
    return match[1] if match else None


def programs_of(page):
    """What a page's text has to run, in its order."""
    programs = []
    language, end = "", 0
    for block in BLOCK.finditer(page):
        is_output = language == "python" and block[1] == "text" and "\n#" not in page[end : block.start()]
        language, text = block.groups()
        if language == "python":
            programs.append(Program(_named(text) or f"program_{len(programs) + 1}.py", text))
        elif is_output:
            programs[-1] = replace(programs[-1], output=text)
        end = block.end()
    return programs


def files_of(page):
    """What a page's text tells to save beside its programs, by name."""
    blocks = (match.groups() for match in BLOCK.finditer(page))
    return {_named(text): text for language, text in blocks if language in SAVED and _named(text)}


def save(page, folder):
    """Do as the page says: save every file, programs among them."""
    files = files_of(page) | {program.file: program.code for program in programs_of(page)}
    for name, text in files.items():
        (Path(folder) / name).write_text(text, encoding="utf-8")


def printed_by_process(program, folder):
    """What a program prints, run as a reader runs it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} if program.needs_clone else None
    done = run_program(program.file, cwd=folder, env=environment, timeout=200, with_ray=program.needs_ray)
    assert done.returncode == 0, f"{program.file}:\n{done.stdout}{done.stderr}"
    return done.stdout


def printed_here(program, folder):
    """What a program prints, run in this process, which has a cluster; what it starts is ended after it."""
    namespace = {"__name__": "__main__", "__file__": str(Path(folder) / program.file)}
    output = io.StringIO()
    arguments, sys.argv = sys.argv, [namespace["__file__"]]
    path, loaded = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(folder))  # a page's modules lie beside its program
    try:
        with contextlib.redirect_stdout(output), contextlib.chdir(folder):
            exec(compile(program.code, namespace["__file__"], "exec"), namespace)
    finally:
        sys.argv, sys.path[:] = arguments, path
        for name in set(sys.modules) - loaded:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]
        _end(namespace.values())
    return output.getvalue()


def _end(values):
    for group in {value.name: value for value in values if isinstance(value, WorkerGroup)}.values():
        group.terminate()
    # Also those that no name of the program's stands for any more.
    session = current_or_none()
    for name in channels_of(session) if session is not None else ():
        Channel.connect(name).delete()
