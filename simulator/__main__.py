"""`python -m simulator`: many stories on all cores, or one of them with its history."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from rlinf_scheduler.host.progress import is_wanted, write_text
from simulator.run import Report, simulate
from simulator.shrink import shrink, tell

CHUNK = 20
MAX_SHOWN = 5


def main(arguments: list[str] | None = None) -> int:
    """Run; 0 when every promise was kept, 1 when one was broken."""
    parser = argparse.ArgumentParser(prog="python -m simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many stories (1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seed", type=int, help="tell the story of this seed only, with its history")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="(all cores)")
    options = parser.parse_args(arguments)
    for name in ("seeds", "processes"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is at least 1, not {getattr(options, name)}")
    if options.seed is not None:
        return _one(options.seed)
    return _many(range(options.first, options.first + options.seeds), options.processes)


def _one(seed: int) -> int:
    report = simulate(seed)
    if report.violation is None:
        _say(*tell(report), f"seed {seed}: every promise was kept; history {report.digest}")
        return 0
    _show(report)
    return 1


def _many(seeds: range, processes: int) -> int:
    began = time.monotonic()
    failed: list[int] = []
    chunks = [seeds[begin : begin + CHUNK] for begin in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(processes) as pool:
        for chunk, broken in zip(chunks, pool.map(_broken, chunks), strict=True):
            failed.extend(broken)
            if is_wanted(sys.stderr, os.environ):
                told = f"{chunk.stop - seeds.start} of {len(seeds)} stories are told"
                write_text(sys.stderr, f"\r{told}, {len(failed)} broke a promise")
    took_s = time.monotonic() - began
    if is_wanted(sys.stderr, os.environ):
        write_text(sys.stderr, "\n")
    _say(f"{len(seeds)} stories in {took_s:.1f} s on {processes} cores: {len(failed)} broke a promise")
    for seed in failed[:MAX_SHOWN]:
        _show(simulate(seed))
    return 1 if failed else 0


def _broken(seeds: range) -> list[int]:
    return [seed for seed in seeds if simulate(seed).violation is not None]


def _show(report: Report) -> None:
    shorter = shrink(report)
    calls_and_faults = f"{len(shorter.script.steps)} of its {len(report.script.steps)} calls and faults"
    _say(
        "",
        f"seed {report.script.seed}: {report.violation}",
        f"  with {calls_and_faults}: {shorter.violation}",
    )
    _say(*_indented(shorter.script.steps), *tell(shorter))


def _indented(steps: tuple[object, ...]) -> Iterator[str]:
    return (f"  {step}" for step in steps)


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
