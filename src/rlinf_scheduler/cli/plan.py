"""`rlinf plan`: who would run where, without Ray, a cluster or an accelerator."""

from __future__ import annotations

import json
from collections import defaultdict
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
from rlinf_scheduler.planning.splitting import Phases

_CONFIGS_HELP = "A YAML file with a `cluster:` section; with --diff two of them, the old and the new one."
_NODES_HELP = "The cluster to plan on: 2x8 is two nodes of eight accelerators, 8,4,0 three uneven nodes."
_FLEET_HELP = "The cluster to plan on, as a file that `rlinf topology --out` wrote."
_TP_HELP = "COMPONENT=N: N consecutive ranks are a tensor-parallel group; warn of those on several nodes."
_DIFF_HELP = (
    "Show which ranks move from the first CONFIG to the second; exit 1 if any does. "
    "With --nodes or --fleet twice, each config has its own."
)
_EXPLAIN_HELP = "Say of each component that is placed by properties which numbers these mean, and why."
_AUTO_HELP = (
    "Propose the split of accelerators that gives the shortest step, by what `rlinf report --json` has measured of "
    "this config; several files, the present one last, tell what does not divide."
)
_PHASES_HELP = "Of --auto: phases `in-turn` or `side-by-side`; by default as the measured step was."
_MEMORY_HELP = (
    "Of --auto: COMPONENT=GB, what it holds of each device while others run; may be given several times."
)
_AT_WORK_HELP = (
    "Of --auto: COMPONENT=SECONDS, for how long it is at work in a step, where the report does not tell that; once for "
    "each report."
)
_CURVE_HELP = "Of --auto: also draw the step of every split, as SVG."
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
    auto: Annotated[list[Path] | None, typer.Option(metavar="REPORT", help=_AUTO_HELP)] = None,
    phases: Annotated[str | None, typer.Option(metavar="HOW", help=_PHASES_HELP)] = None,
    memory: Annotated[list[str] | None, typer.Option(metavar="COMPONENT=GB", help=_MEMORY_HELP)] = None,
    at_work: Annotated[
        list[str] | None, typer.Option(metavar="COMPONENT=SECONDS", help=_AT_WORK_HELP)
    ] = None,
    curve: Annotated[Path | None, typer.Option(metavar="FILE", help=_CURVE_HELP)] = None,
    diff: Annotated[bool, typer.Option("--diff", help=_DIFF_HELP)] = False,
    without: Annotated[list[str] | None, typer.Option(metavar="NODE", help=_WITHOUT_HELP)] = None,
) -> None:
    """Show who would run where, and who shares what, without a cluster."""
    where = _where(nodes or [], fleet or [], 2 if diff else 1)
    groups = dict(map(_tensor_parallel, tp or []))
    if diff:
        others = html is not None or as_map or groups or without or explain or auto
        _refuse_if(
            others or len(configs) != 2,
            "--diff takes two configs, and of the other options --nodes, --fleet, --json and --ranks",
        )
        _show_diff(configs, where, as_json=as_json, every_rank=every_rank)
        return
    if len(configs) != 1:
        raise typer.BadParameter("give one config; two with --diff", param_hint="CONFIG")
    _refuse_if(
        explain and without, "--explain says what is found on all nodes, and not what --without leaves"
    )
    _refuse_if(as_json and as_map, "--json and --map are two answers: ask for one of them")
    read = (*configs, *(fleet or []), *(auto or []))
    _check_is_other(html, read, "--html")
    _check_is_other(curve, read, "--curve")
    if auto or phases or memory or at_work or curve:
        _refuse_if(
            as_json or as_map or html is not None or every_rank or groups or explain or without,
            "--auto takes, of the other options, --nodes, --fleet, --phases, --memory, --at-work and --curve",
        )
        _show_splits(configs[0], where[0], auto or [], phases, (memory or [], at_work or []), curve)
        return
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


def _refuse_if(asked: object, problem: str) -> None:
    if asked:
        raise typer.BadParameter(problem)


def _check_is_other(file: Path | None, read: Sequence[Path], option: str) -> None:
    if file is not None and file.resolve() in {path.resolve() for path in read}:
        raise typer.BadParameter(f"{file} is what the plan is read from", param_hint=option)


def _show_splits(
    config: Path,
    where: Where,
    reports: Sequence[Path],
    phases: str | None,
    said: tuple[Sequence[str], Sequence[str]],
    curve: Path | None,
) -> None:
    from rlinf_scheduler.cli.plan_auto import draw_curve, propose, render_proposal  # noqa: PLC0415

    known: dict[str | None, Phases | None] = {
        None: None,
        "in-turn": "in turn",
        "side-by-side": "side by side",
    }
    if not reports:
        raise typer.BadParameter("--phases, --memory, --at-work and --curve are of --auto")
    if phases not in known:
        raise typer.BadParameter(f"'{phases}' is neither in-turn nor side-by-side", param_hint="--phases")
    memory, at_work = said
    held = dict(_amount(text, "--memory", "COMPONENT=GB, such as actor=60") for text in memory)
    at_work_s: dict[str, list[float]] = defaultdict(list)
    for text in at_work:
        name, seconds = _amount(text, "--at-work", "COMPONENT=SECONDS, such as rollout=4.5")
        at_work_s[name].append(seconds)
    with readable_errors():
        found = propose(planned(config, where).plan, reports, known[phases], held, at_work_s)
        if curve is not None:
            _write(curve, draw_curve(found).encode("utf-8", "replace"), "--curve")
    typer.echo(render_proposal(found), nl=False)


def _amount(text: str, option: str, wanted: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    try:
        size = float(number)
    except ValueError:
        size = -1.0
    if not name.strip() or not 0 <= size < float("inf"):
        raise typer.BadParameter(f"'{text}' is not {wanted}", param_hint=option)
    return name.strip(), size


def _write_page(report: PlanReport, file: Path, title: str) -> None:
    # It reads the page's parts, which nobody else needs.
    from rlinf_scheduler.cli.plan_page import render_page  # noqa: PLC0415

    # A name may hold half a character, which no encoding knows.
    _write(file, render_page(report, title).encode("utf-8", "replace"), "--html")


def _write(file: Path, content: bytes, option: str) -> None:
    try:
        file.write_bytes(content)
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be written: {error.strerror}", param_hint=option) from error
    typer.echo(f"wrote {file} ({len(content) // 1024 + 1} KB): open it in a browser", err=True)


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
