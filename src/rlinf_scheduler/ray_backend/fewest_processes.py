"""A program's own Ray, started with no more of Ray's processes than somebody needs: in half the time.

No server of the dashboard, which is for statistics of Ray's use where nobody has asked for a dashboard; no monitor,
which would look after nodes to add or to remove; and in place of its two agents programs that wait until one is asked.

What `rlinf node start` starts is a node as Ray starts it: it stays for days, and people ask it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import ray._raylet
from ray._private import ray_constants, services
from ray._private.node import Node

from rlinf_scheduler.ray_backend import variables
from rlinf_scheduler.ray_backend.patches import replaced

_IDLE = Path(__file__).with_name("idle_agent.py")
_OF_DASHBOARD, _OF_ENVIRONMENTS = "--dashboard_agent_command=", "--runtime_env_agent_command="
_PROGRAMS = {_OF_DASHBOARD: "dashboard/agent.py", _OF_ENVIRONMENTS: "_private/runtime_env/agent/main.py"}
# Ray says so to an agent that has nothing to offer: its dashboard is not installed.
_MINIMAL = "--minimal"
# Where a raylet waits until its agents have written where they listen; older ones tell them where to.
_DASHBOARD_PORTS = "METRICS_AGENT_PORT_NAME", "METRICS_EXPORT_PORT_NAME", "DASHBOARD_AGENT_LISTEN_PORT_NAME"
_ENVIRONMENTS_PORT = "RUNTIME_ENV_AGENT_PORT_NAME"
_NOWHERE = -1
_raylet: Any = ray._raylet  # made by Cython


@contextmanager
def fewest_processes() -> Iterator[None]:
    """Have a node that is started inside have no process that nobody asks."""
    start, start_server = services.start_ray_process, services.start_api_server

    def start_api_server(include_dashboard: bool | None, *args: Any, **options: Any) -> Any:
        if include_dashboard is False and os.environ.get(variables.USAGE_VARIABLE) != "1":
            return None, None
        return start_server(include_dashboard, *args, **options)

    def start_ray_process(command: Sequence[str], process_type: str, *args: Any, **options: Any) -> Any:
        if process_type == ray_constants.PROCESS_TYPE_RAYLET:
            command = _with_idle_agents(command)
        return start(command, process_type, *args, **options)

    with (
        replaced(services, start_ray_process=start_ray_process, start_api_server=start_api_server),
        replaced(Node, start_monitor=lambda _: None),
    ):
        yield


def _with_idle_agents(command: Sequence[str]) -> list[str]:
    """Return a raylet's command with others for its agents, where they are as we know them."""
    folder, node_id = (_value(command, option) for option in ("--session_dir=", "--node_id="))
    return [_idle(each, folder, node_id) for each in command]


def _value(command: Sequence[str], option: str) -> str:
    return next((each.removeprefix(option) for each in command if each.startswith(option)), "")


def _idle(argument: str, folder: str, node_id: str) -> str:
    option = next((each for each in _PROGRAMS if argument.startswith(each)), None)
    if option is None:
        return argument
    program = subprocess.list2cmdline([str(Path(ray.__file__).parent / _PROGRAMS[option])])
    interpreter, found, arguments = argument.partition(f" -u {program} ")
    if not found:  # a profiler starts it, say
        return argument
    if option == _OF_ENVIRONMENTS:
        if hasattr(_raylet, _ENVIRONMENTS_PORT):
            path = Path(folder, _raylet.get_port_filename(node_id, getattr(_raylet, _ENVIRONMENTS_PORT)))
            arguments += " " + subprocess.list2cmdline([f"--port-file={path}"])
    elif _MINIMAL in arguments.split():
        for name in _DASHBOARD_PORTS:
            if hasattr(_raylet, name):
                _raylet.persist_port(folder, node_id, getattr(_raylet, name), _NOWHERE)
    else:
        return argument
    return f"{interpreter} -I -S {subprocess.list2cmdline([str(_IDLE)])} {program} {arguments}"
