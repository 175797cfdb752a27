"""EGL's numbers of a node's NVIDIA accelerators, and the variables by which renderers take the right one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rlinf_scheduler.planning import Node, Placement

# MuJoCo and robosuite read the first, pyrender and others the second.
EGL_VARIABLES = ("MUJOCO_EGL_DEVICE_ID", "EGL_DEVICE_ID")
EGL_VIEW = (sys.executable, "-I", "-S", str(Path(__file__).with_name("egl_view.py")))
NVIDIA = "NVIDIA"


def find_egl_devices(
    count: int, environment: Mapping[str, str], timeout_s: float = 10.0, command: tuple[str, ...] = EGL_VIEW
) -> tuple[int, ...]:
    """EGL's number of each accelerator that processes with this environment see; empty where EGL does not say.

    Args:
        count: how many they see.
        environment: their variables.
        timeout_s: how long it may take.
        command: the program that asks, see `egl_view`.
    """
    try:
        done = subprocess.run(  # noqa: S603 - the program is our own
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=True,
            env=dict(environment),
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_egl_view(done.stdout.decode("ascii", errors="replace"), count)


def parse_egl_view(output: str, count: int) -> tuple[int, ...]:
    r"""EGL's number of each of `count` accelerators from pairs of CUDA's number and EGL's, -1 where there is none.

    >>> parse_egl_view("1 0\n0 2\n", 3)
    (2, 0, -1)
    >>> parse_egl_view("", 3)
    ()
    """
    pairs = [line.split() for line in output.splitlines()]
    number_of = {int(p[0]): int(p[1]) for p in pairs if len(p) == 2 and all(map(str.isdecimal, p))}
    return tuple(number_of.get(ordinal, -1) for ordinal in range(count)) if number_of else ()


def render_settings(placement: Placement, node: Node) -> dict[str, str]:
    """The variables that make a renderer of a process use the process's own first accelerator.

    EGL does not look at the visibility variable: without them all processes of a node would render on its first
    device. Where EGL does not say, CUDA's own number is taken.

    >>> node = Node(num_accelerators=2, accelerator_type="NVIDIA", egl_devices=(1, 0))
    >>> mine = Placement(0, "", 0, local_hardware_ranks=(1,), has_accelerators=True)
    >>> render_settings(mine, node)
    {'MUJOCO_EGL_DEVICE_ID': '0', 'EGL_DEVICE_ID': '0'}
    """
    if not placement.has_accelerators or node.accelerator_type != NVIDIA:
        return {}
    index = placement.local_hardware_ranks[0]
    known = node.egl_devices[index] if index < len(node.egl_devices) else -1
    name = str(known) if known >= 0 else node.accelerator_names[index]
    return dict.fromkeys(EGL_VARIABLES, name) if name.isdecimal() else {}
