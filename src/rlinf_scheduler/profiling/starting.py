"""Ranks that are started under a vendor's profiler."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import ray
from ray.exceptions import GetTimeoutError

from rlinf_scheduler.errors import ConfigError, LaunchTimeout
from rlinf_scheduler.hardware.profilers import ProfilingConfig
from rlinf_scheduler.planning import Node, Placement
from rlinf_scheduler.planning.environments import EnvironmentTable, ProcessEnvironment
from rlinf_scheduler.ray_backend.backend import on_node, ray_errors

_PATH = "cluster.profiling"


def profiled_environments(
    profiling: ProfilingConfig,
    group: str,
    placements: Sequence[Placement],
    nodes: Sequence[Node],
    environments: EnvironmentTable,
    timeout_s: float,
) -> Mapping[int, ProcessEnvironment]:
    """What the ranks that are profiled start with, by rank; empty where none is.

    Raises:
        ConfigError: the profiler is not on a node of theirs, or its folder of reports cannot be made there.
        LaunchTimeout: a node does not answer in time.
    """
    if profiling.backend == "torch" or not profiling.profiles(group):
        return {}
    chosen = [placement for placement in placements if profiling.profiles(group, placement.rank)]
    started = {placement.rank: environments.of(placement) for placement in chosen}
    looks = {(p.node_rank, dict(started[p.rank].env_vars).get("PATH", "")) for p in chosen}
    found = _found(profiling, group, sorted(looks), nodes, timeout_s)
    for placement in chosen:
        own = started[placement.rank]
        program, python = found[placement.node_rank, dict(own.env_vars).get("PATH", "")]
        report = profiling.report_of(group, placement.rank)
        started[placement.rank] = replace(
            own,
            env_vars=tuple({**dict(own.env_vars), **profiling.variables(report)}.items()),
            python_interpreter_path=profiling.command(program, own.python_interpreter_path or python, report),
        )
    return started


def look_for_profiler(program: str, path: str, folder: str) -> tuple[str, str, str]:
    """On a node: the program's path, or ""; the node's interpreter; and why the reports' folder cannot be made, or "".

    Args:
        program: its name or path.
        path: what the rank's PATH is set to; `${PATH}` stands for the node's.
        folder: of the reports.
    """
    there = path.replace("${PATH}", os.environ.get("PATH", "")) if path else None
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        problem = ""
    except OSError as error:
        problem = error.strerror or str(error)
    return shutil.which(program, path=there) or "", sys.executable, problem


def _found(
    profiling: ProfilingConfig,
    group: str,
    looks: Sequence[tuple[int, str]],
    nodes: Sequence[Node],
    timeout_s: float,
) -> dict[tuple[int, str], tuple[str, str]]:
    folder = str(Path(profiling.report_of(group, 0)).parent)
    look = ray.remote(num_cpus=0, max_retries=0)(look_for_profiler)
    with ray_errors("looking for the profiler failed"):
        pending = [
            look.options(scheduling_strategy=on_node(nodes[rank].node_id)).remote(
                profiling.program, path, folder
            )
            for rank, path in looks
        ]
        try:
            told = ray.get(pending, timeout=timeout_s)
        except GetTimeoutError as error:
            raise LaunchTimeout(
                group, f"no node said within {timeout_s:g} s where its profiler is"
            ) from error
    found: dict[tuple[int, str], tuple[str, str]] = {}
    for (rank, path), (program, python, problem) in zip(looks, told, strict=True):
        node = f"node {rank} ({nodes[rank].ip})"
        if not program:
            raise ConfigError(
                f"'{profiling.program}' is not on {node}, where ranks of '{group}' are to be profiled",
                path=f"{_PATH}.tool" if profiling.tool else f"{_PATH}.backend",
                hint="install it there; `tool:` may name its path",
            )
        if problem:
            raise ConfigError(f"{folder} cannot be made on {node}: {problem}", path=f"{_PATH}.output_dir")
        found[rank, path] = (program, python)
    return found
