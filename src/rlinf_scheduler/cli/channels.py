"""`rlinf channels`: what goes on in the channels of a running job."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from rlinf_scheduler.cli.common import ANSWER_IS_NO, AsJson, Job, attached, readable_errors

if TYPE_CHECKING:
    from rlinf_scheduler.channel import ChannelReport

# How often `--watch` looks again, in seconds.
EVERY_S = 1.0
# What this process is called in the job.
LOOKER = "rlinf-channels:"


def channels(
    names: Annotated[list[str] | None, typer.Argument(help="Only these channels.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every second, until Ctrl-C.")] = False,
    as_json: AsJson = False,
    job: Job = None,
) -> None:
    """Show who waits for what in the channels of a job whose driver runs on this machine."""
    with readable_errors(), attached(job, LOOKER):
        found = _explain(names)
        if watch and not as_json:
            _watch(names)
        elif as_json:
            typer.echo(json.dumps([report.to_dict() for report in found], indent=2))
        elif found:
            typer.echo(_text(found))
        else:
            typer.echo("the job has no channels")
            raise typer.Exit(ANSWER_IS_NO)


def _explain(names: list[str] | None) -> list[ChannelReport]:
    from rlinf_scheduler.channel import Channel, ChannelReport, channels_of, unheld_channels  # noqa: PLC0415
    from rlinf_scheduler.errors import ChannelError  # noqa: PLC0415
    from rlinf_scheduler.session import current_session  # noqa: PLC0415

    found = []
    unheld = unheld_channels(current_session())
    for name in names or sorted(channels_of(current_session())):
        try:
            held = name not in unheld
            found.append(Channel.connect(name, timeout_s=0).explain() if held else ChannelReport.unheld(name))
        except ChannelError:
            if names:  # one that ends meanwhile is not missed where nobody named it
                raise
    return found


def _text(found: list[ChannelReport]) -> str:
    """Idle channels in a line each; and without this process, which only looks."""

    def shown(report: ChannelReport) -> str:
        peers = tuple(peer for peer in report.peers if not peer.name.startswith(LOOKER))
        return str(replace(report, peers=peers)) if report.queues else report.headline

    return "\n".join(map(shown, found))


def _watch(names: list[str] | None) -> None:
    import time  # noqa: PLC0415

    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from rlinf_scheduler.errors import ChannelError, CommError  # noqa: PLC0415

    with Live(screen=False, auto_refresh=False) as live:
        try:
            while True:
                live.update(Text(_text(_explain(names)) or "the job has no channels"), refresh=True)
                time.sleep(EVERY_S)
        except KeyboardInterrupt:
            return
        except (ChannelError, CommError):
            live.stop()
            typer.echo("the job has ended, or its channels have")
