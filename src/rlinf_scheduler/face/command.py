"""`python -m rlinf_scheduler`: replaces itself by the interpreter that runs the program, with the variables set.

So arguments, paths, `__main__`, exit codes, tracebacks, signals and debuggers are those of plain Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from rlinf_scheduler.face.finder import variables_of_children
from rlinf_scheduler.version import __version__

_USAGE = """\
usage: python -m rlinf_scheduler PROGRAM [ARGUMENT...]
       python -m rlinf_scheduler -m MODULE [ARGUMENT...]

Runs a program of an RLinf checkout with rlinf-scheduler in the place of the checkout's own rlinf.scheduler, in the
driver and in every rank. All else is as of `python PROGRAM`; nothing on disk is changed.
"""
_WRONG_QUESTION = 2


def main() -> NoReturn:
    """Become the program that the command line names."""
    arguments = sys.argv[1:]
    if not arguments:
        _end(_USAGE)
    if arguments[0] in ("-h", "--help", "--version"):
        sys.stdout.write(f"rlinf-scheduler {__version__}\n" if arguments[0] == "--version" else _USAGE)
        sys.exit()
    if sys.flags.ignore_environment or sys.flags.no_site:
        _end(
            "rlinf_scheduler: with -I, -E or -S Python takes no PYTHONPATH or loads no `site`, so no process of the "
            "program would have rlinf-scheduler in the place of RLinf's own: start it without them\n"
        )
    options = interpreter_options(sys.orig_argv, len(arguments))
    environment = {**os.environ, **variables_of_children(os.environ, os.getpid())}
    os.execve(sys.executable, [sys.executable, *options, *arguments], environment)  # noqa: S606


def interpreter_options(command: Sequence[str], num_arguments: int) -> list[str]:
    """Return what stands before `-m rlinf_scheduler`, without the interpreter; [] where that does not stand there.

    Args:
        num_arguments: how many of its last words are the program and its arguments.
    """
    before = list(command[1 : len(command) - num_arguments])
    name = __name__.partition(".")[0]
    last = before.pop() if before else ""
    if last == name and before and before[-1].startswith("-"):
        last = before.pop() + name
    if last.startswith("--") or not last.startswith("-") or not last.endswith(f"m{name}"):
        return []
    flags = last.removesuffix(f"m{name}")
    return [*before, *([flags] if flags != "-" else [])]


def _end(text: str) -> NoReturn:
    sys.stderr.write(text)
    sys.exit(_WRONG_QUESTION)
