"""`rlinf web` and `rlinf metrics`: a running job, served for a browser or for Prometheus until it ends."""

from __future__ import annotations

import ipaddress
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlinf_scheduler.cli.common import Job, looking_at, readable_errors

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from rlinf_scheduler.metrics.prometheus import WsgiApp
    from rlinf_scheduler.session import Session

# What this process is called in the job, before its number.
WEB, METRICS = "rlinf-web-", "rlinf-metrics-"


def web(
    job: Job = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of this machine; 0: any that is free.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as data.")] = False,
) -> None:
    """Serve a page that shows a job whose driver runs on this machine, live, until the job ends or Ctrl-C.

    It listens on the loopback address alone, and lets in who has the address that is printed.
    """
    # Sockets and keys take a while to load, and other commands do without them.
    from rlinf_scheduler.session.job_file import find_job  # noqa: PLC0415
    from rlinf_scheduler.web.server import serve_job  # noqa: PLC0415

    with readable_errors():
        found = find_job(job)
        with looking_at([found], WEB) as (session,):
            over = threading.Event()
            _on_end(session, over.set)
            session.on_close(over.set)
            url = serve_job(session, port).url
            about = f"job {found.pid} ({found.program}): {url}"
            typer.echo(json.dumps({"job": found.pid, "url": url}) if as_json else about)
            with suppress(KeyboardInterrupt):
                over.wait()
                typer.echo("the job has ended", err=True)


def _on_end(session: Session, end: Callable[[], None]) -> None:
    """Have something called, on the I/O thread, when the job ends."""

    def on_lost(process_id: str) -> None:
        if process_id == session.home.process_id:
            end()

    session.messenger.on_peer_lost(on_lost)


# -- metrics -----------------------------------------------------------------------------------------


def metrics(
    job: Job = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 0,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option(help="Who reads the metrics has to show what is in this file; else in one of yours."),
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Everybody on this machine may read the metrics.")
    ] = False,
) -> None:
    """Serve the metrics of a job whose driver runs on this machine, at /metrics, until the job ends or Ctrl-C.

    Who reads them shows a token, `Authorization: Bearer ...`: what is in a file whose name is printed.
    """
    # Sockets and keys take a while to load, and other commands do without them.
    from rlinf_scheduler.comm.threads import run_beside  # noqa: PLC0415
    from rlinf_scheduler.metrics.prometheus import PATH, metrics_app  # noqa: PLC0415
    from rlinf_scheduler.observe.status_service import begin_status, received  # noqa: PLC0415
    from rlinf_scheduler.session.job_file import find_job  # noqa: PLC0415

    with readable_errors():
        file = _token_file(token_file, host, no_token=no_token)
        token = _token(file) if file is not None else ""
        with looking_at([find_job(job)], METRICS) as (session,):
            app = metrics_app(lambda: received(begin_status(session)), token=token)
            with _server(host, port, app) as server:
                # Not on the I/O thread: it waits for the loop that serves.
                _on_end(session, partial(run_beside, server.shutdown))
                shown = f"[{host}]" if ":" in host else host
                typer.echo(f"http://{shown}:{server.server_port}{PATH}")
                if file is not None:
                    typer.echo(f"its readers show what is in {file.absolute()}", err=True)
                with suppress(KeyboardInterrupt):
                    server.serve_forever()


def _token_file(wanted: Path | None, host: str, *, no_token: bool) -> Path | None:
    from rlinf_scheduler.errors import ClusterError  # noqa: PLC0415
    from rlinf_scheduler.metrics.prometheus import own_token_file  # noqa: PLC0415

    if no_token and wanted is not None:
        raise ClusterError("--token-file and --no-token: say one of them")
    if wanted is None and not _is_loopback(host):
        problem = (
            f"{host} may be reached from other machines: say by `--token-file` what its readers have to show"
        )
        raise ClusterError(problem)
    return wanted if wanted is not None or no_token else own_token_file()


def _token(file: Path) -> str:
    from rlinf_scheduler.errors import ClusterError  # noqa: PLC0415

    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(f"the token cannot be read: {error}") from error
    if not token:
        raise ClusterError(f"there is no token in {file}")
    return token


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _server(host: str, port: int, app: WsgiApp) -> WSGIServer:
    from rlinf_scheduler.errors import ClusterError  # noqa: PLC0415
    from rlinf_scheduler.web.server import ThreadedServer  # noqa: PLC0415

    try:
        server = ThreadedServer(host, port)
    except OSError as error:
        raise ClusterError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from error
    server.set_app(app)
    return server
