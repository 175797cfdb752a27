"""`rlinf plan`: who would run where, without Ray, a cluster or an accelerator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rlinf_scheduler.checks import whole_number
from rlinf_scheduler.cli.common import ANSWER_IS_NO, readable_errors
from rlinf_scheduler.cli.plan_diff import diff_as_data, render_diff
from rlinf_scheduler.cli.plan_map import render_map
from rlinf_scheduler.cli.plan_table import (
    render_found,
    render_plan,
    render_remainder,
    render_warnings,
    summary_line,
)
from rlinf_scheduler.cli.planned import PlanReport, Where, planned, report_as_data, report_on
from rlinf_scheduler.planning import diff_plans

_CONFIGS_HELP = "A YAML file with a `cluster:` section; with --diff two of them, the old and the new one."
_NODES_HELP = "The cluster to plan on: 2x8 is two nodes of eight accelerators, 8,4,0 three uneven nodes."
_FLEET_HELP = "The cluster to plan on, as a file that `rlinf topology --out` wrote."
_TP_HELP = "COMPONENT=N: N consecutive ranks are a tensor-parallel group; warn of those on several nodes."
_DIFF_HELP = (
    "Show which ranks move from the first CONFIG to the second; exit 1 if any does. "
    "With --nodes or --fleet twice, each config has its own."
)
_EXPLAIN_HELP = "Say of each component that is placed by properties which numbers these mean, and why."
_WITHOUT_HELP = (
    "Show what remains when a node is gone: node3, its address or its name; may be given several times. "
    "Exit 1 if some rank has no place any more."
)


def plan(
    configs: Annotated[list[Path], typer.Argument(metavar="CONFIG", help=_CONFIGS_HELP)],
    nodes: Annotated[list[str] | None, typer.Option(metavar="SHAPE", help=_NODES_HELP)] = None,
    fleet: Annotated[list[Path] | None, typer.Option(metavar="FILE", help=_FLEET_HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as data.")] = False,
    as_map: Annotated[
        bool, typer.Option("--map", help="Draw nodes and devices, a letter a component.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the plan as a page for a browser.")
    ] = None,
    every_rank: Annotated[
        bool, typer.Option("--ranks", help="List every rank, however many there are.")
    ] = False,
    tp: Annotated[list[str] | None, typer.Option(metavar="COMPONENT=N", help=_TP_HELP)] = None,
    explain: Annotated[bool, typer.Option("--explain", help=_EXPLAIN_HELP)] = False,
    diff: Annotated[bool, typer.Option("--diff", help=_DIFF_HELP)] = False,
    without: Annotated[list[str] | None, typer.Option(metavar="NODE", help=_WITHOUT_HELP)] = None,
) -> None:
    """Show who would run where, and who shares what, without a cluster."""
    where = _where(nodes or [], fleet or [], 2 if diff else 1)
    groups = dict(map(_tensor_parallel, tp or []))
    if diff:
        if len(configs) != 2 or html is not None or as_map or groups or without:
            raise typer.BadParameter(
                "--diff takes two configs, and of the other options --nodes, --fleet, --json and --ranks"
            )
        _show_diff(configs, where, as_json=as_json, every_rank=every_rank)
        return
    if len(configs) != 1:
        raise typer.BadParameter("give one config; two with --diff", param_hint="CONFIG")
    if as_json and as_map:
        raise typer.BadParameter("--json and --map are two answers: ask for one of them")
    if html is not None and html.resolve() in {path.resolve() for path in (*configs, *(fleet or []))}:
        raise typer.BadParameter(f"{html} is what the plan is read from", param_hint="--html")
    with readable_errors():
        found = planned(configs[0], where[0], without or ())
        report = report_on(found, groups)
        if html is not None:
            _write_page(report, html, configs[0].name)
        if as_json:
            typer.echo(json.dumps(report_as_data(report), indent=2))
        else:
            typer.echo(_as_text(report, as_map=as_map, every_rank=every_rank), nl=False)
            if explain:
                typer.echo(render_found(found.found.values()), nl=False)
    if report.remainder is not None and not report.remainder.is_whole:
        raise typer.Exit(ANSWER_IS_NO)


def _as_text(report: PlanReport, *, as_map: bool, every_rank: bool) -> str:
    if as_map:
        text = f"{render_map(report.plan, report.sharing)}\n{summary_line(report.plan)}\n"
    else:
        text = render_plan(report.plan, every_rank=every_rank, sharing=report.sharing)
    lost = render_remainder(report.remainder) if report.remainder is not None else ""
    return lost + text + render_warnings(report.warnings)


def _show_diff(configs: Sequence[Path], where: Sequence[Where], *, as_json: bool, every_rank: bool) -> None:
    with readable_errors():
        old, new = (planned(config, place).plan for config, place in zip(configs, where, strict=True))
        found = diff_plans(old, new)
    if as_json:
        typer.echo(json.dumps(diff_as_data(found), indent=2))
    else:
        typer.echo(render_diff(found, every_rank=every_rank), nl=False)
    if found.moves:
        raise typer.Exit(ANSWER_IS_NO)


def _write_page(report: PlanReport, file: Path, title: str) -> None:
    # It reads the page's parts, which nobody else needs.
    from rlinf_scheduler.cli.plan_page import render_page  # noqa: PLC0415

    # A name may hold half a character, which no encoding knows.
    page = render_page(report, title).encode("utf-8", "replace")
    try:
        file.write_bytes(page)
    except OSError as error:
        raise typer.BadParameter(
            f"{file} cannot be written: {error.strerror}", param_hint="--html"
        ) from error
    typer.echo(f"wrote {file} ({len(page) // 1024 + 1} KB): open it in a browser", err=True)


def _where(shapes: list[str], fleets: list[Path], num_configs: int) -> list[Where]:
    """Where each config is planned: what is given once holds for all."""
    if shapes and fleets:
        raise typer.BadParameter("--nodes and --fleet both say what to plan on: give one of them")
    given = [Where(shape=shape) for shape in shapes] or [Where(fleet=file) for file in fleets] or [Where()]
    if len(given) > num_configs:
        raise typer.BadParameter(f"--{'nodes' if shapes else 'fleet'} is given {len(given)} times")
    return given if len(given) == num_configs else given * num_configs


def _tensor_parallel(text: str) -> tuple[str, int]:
    name, _, digits = text.rpartition("=")
    size = whole_number(digits, lowest=1, from_text=True)
    if not name.strip() or size is None:
        raise typer.BadParameter(f"'{text}' is not COMPONENT=N, such as rollout=4", param_hint="--tp")
    return name.strip(), size
