"""The `rlinf` command: each subcommand parses, calls one library function, and renders."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress

import typer

from rlinf_scheduler.cli.channels import channels
from rlinf_scheduler.cli.common import WRONG_QUESTION
from rlinf_scheduler.cli.doctor import doctor
from rlinf_scheduler.cli.jobs import jobs
from rlinf_scheduler.cli.node import node
from rlinf_scheduler.cli.pdb import pdb
from rlinf_scheduler.cli.plan import plan
from rlinf_scheduler.cli.report import report, why
from rlinf_scheduler.cli.serve import metrics, web
from rlinf_scheduler.cli.top import top
from rlinf_scheduler.cli.topology import devices, topology
from rlinf_scheduler.cli.weights import weights
from rlinf_scheduler.extension import extension_named
from rlinf_scheduler.rooms import not_installed

# What a write says where the disk, or the user's part of it, is full.
_FULL = (errno.ENOSPC, errno.EDQUOT)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Typer's panels are drawn in pipes too; its plain help is for both.
    rich_markup_mode=None,
)
app.command()(plan)
app.command()(topology)
app.command()(channels)
app.command()(why)
app.command()(report)
app.command()(top)
app.command()(metrics)
app.command()(web)
app.command()(pdb)
app.command()(devices)
app.command()(doctor)
app.add_typer(jobs, name="jobs")
app.add_typer(node, name="node")
app.add_typer(weights, name="weights")


def _print_version(wanted: bool) -> None:
    if wanted:
        # It takes longer to load than all of Python, and only this asks for it.
        from importlib.metadata import version  # noqa: PLC0415

        typer.echo(f"rlinf-scheduler {version('rlinf-scheduler')}")
        raise typer.Exit


@app.callback()
def rlinf(
    _version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Placement and data flow for reinforcement-learning systems.

    Exits with 0 when done, 1 when the answer is no, 2 when the question was wrong.
    """


def _find_extension_here() -> None:
    """Have the extension module found in the current folder, where `python -m` and programs find it."""
    if extension_named():
        with suppress(FileNotFoundError):  # the folder is gone
            sys.path.insert(0, os.getcwd())


def main() -> None:
    """Run the command line and exit with its code."""
    if sys.stdout is None:  # It was closed: nobody reads what is shown, and the exit code is what is wanted.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process lives
    _find_extension_here()
    try:
        app(prog_name="rlinf")
    except ModuleNotFoundError as error:
        problem = not_installed(error)
        if problem is error:
            raise
        typer.echo(f"rlinf: {problem}", err=True)
        sys.exit(WRONG_QUESTION)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        typer.echo(f"rlinf: what is to be written finds no room: {error.strerror}", err=True)
        sys.exit(WRONG_QUESTION)
