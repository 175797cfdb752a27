"""A tiny checkout of a package `rlinf` of our own, whose scheduler cannot be imported, and how it is run."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

SOURCES = Path(__file__).parents[2] / "src"
FACE = str(SOURCES / "rlinf" / "scheduler" / "__init__.py")

FILES = {
    "pyproject.toml": "",
    "rlinf/__init__.py": "KIND = 'a checkout'",
    "rlinf/scheduler/__init__.py": "raise RuntimeError('the own scheduler of the checkout was imported')",
    "rlinf/runners.py": """
        import multiprocessing, subprocess, sys
        import rlinf.scheduler

        def places():
            '''Which scheduler this process has.'''
            return rlinf.scheduler.__file__

        def _send(pipe):
            pipe.send(places())

        def places_of_children(methods=("spawn",)):
            '''Those of processes that it starts.'''
            code = "import rlinf.runners as r; print(r.places())"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            found = [done.stdout.strip()]
            for method in methods:
                context = multiprocessing.get_context(method)
                ours, theirs = context.Pipe()
                child = context.Process(target=_send, args=(theirs,))
                child.start()
                assert ours.poll(100), method
                found.append(ours.recv())
                child.join()
            return found
    """,
    "rlinf/workers.py": """
        import ray
        from rlinf.runners import places, places_of_children
        from rlinf.scheduler import Worker

        class Env(Worker):
            def places(self):
                return places(), places_of_children(), ray.get(Simulator.remote().places.remote())

        @ray.remote(num_cpus=0)
        class Simulator:
            def places(self):
                return places()
    """,
}


def write(folder, files=FILES):
    """Write files into a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    return folder


def run(*command, path=(), cwd=None, options=(), env=None, timeout=110):
    """Run a program by `python -m rlinf_scheduler`, with a PYTHONPATH of these folders."""
    return plain(
        "-m", "rlinf_scheduler", *command, path=path, cwd=cwd, options=options, env=env, timeout=timeout
    )


def plain(*command, path=(), cwd=None, options=(), env=None, timeout=110):
    """Run a program by plain Python."""
    return subprocess.run(
        [sys.executable, *options, *map(str, command)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
