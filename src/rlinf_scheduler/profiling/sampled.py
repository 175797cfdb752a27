"""A profile of a process: its stacks, sampled by a thread of its own."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

from rlinf_scheduler.comm import Messenger
from rlinf_scheduler.comm.rundir import private_file
from rlinf_scheduler.errors import CommError, ResultTimeout
from rlinf_scheduler.observe.levels import Level, Levels
from rlinf_scheduler.observe.stacks import frames_of_threads, is_own_thread
from rlinf_scheduler.session import Session

if TYPE_CHECKING:
    # Ranks load this file when they start, and are no drivers.
    from rlinf_scheduler.worker.group_calls import KnownRank

# How long after the end of a profile a rank may take to send what it has seen.
SENDING_S = 10.0
MAX_FRAMES = 200
_log = logging.getLogger(__name__)

# A line as (file, line, function), and a stack of them, the outermost first.
Place = tuple[str, int, str]


class TakeProfile(msgspec.Struct, frozen=True, array_like=True):
    """Sample the stacks of a process for so long, so often -> `Profile`."""

    seconds: float
    rate_hz: float


class Profile(msgspec.Struct, frozen=True, array_like=True):
    """Where the threads of a process were.

    Attributes:
        places: files, lines and functions.
        counts: by thread: each stack, as numbers of places, the outermost first, and how often it was seen.
    """

    seconds: float
    places: list[Place]
    counts: dict[str, list[tuple[list[int], int]]]


# A level of every process.
PROFILE = Level("profile", Profile, TakeProfile)


def serve_profiles(session: Session) -> None:
    """Answer at the level of profiles."""
    session.service(Levels).add(PROFILE, lambda wanted: sample(wanted.seconds, wanted.rate_hz), beside=True)


def sample(seconds: float, rate_hz: float) -> Profile:
    """Look where all threads are but this one, so often, for so long."""
    own, pause_s = threading.get_ident(), 1 / rate_hz
    seen: Counter[tuple[int, tuple[Place, ...]]] = Counter()
    began = next_at = time.monotonic()
    while next_at < began + seconds:
        for ident, places in frames_of_threads(_places).items():
            if ident != own:
                seen[ident, places] += 1
        next_at += pause_s
        # Where it was held up, what was missed is missed.
        next_at = max(next_at, time.monotonic())
        time.sleep(max(0.0, next_at - time.monotonic()))
    names = {ident: thread.name for ident, thread in dict(threading._active).items()}  # type: ignore[attr-defined]
    return _profile(time.monotonic() - began, seen, names)


def _places(frames: Iterator[FrameType]) -> tuple[Place, ...]:
    def place(frame: FrameType) -> Place:
        code = frame.f_code
        return code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_qualname

    return tuple(map(place, islice(frames, MAX_FRAMES)))[::-1]


def _profile(seconds: float, seen: Counter[tuple[int, tuple[Place, ...]]], names: dict[int, str]) -> Profile:
    numbers: dict[Place, int] = {}
    counts: dict[str, list[tuple[list[int], int]]] = {}
    for (ident, places), count in seen.items():
        name = names.get(ident, f"thread {ident}")
        if not is_own_thread(name):
            stack = [numbers.setdefault(place, len(numbers)) for place in places]
            counts.setdefault(name, []).append((stack, count))
    return Profile(seconds, list(numbers), counts)


def speedscope(title: str, profiles: Iterable[tuple[str, Profile]]) -> dict[str, Any]:
    """Profiles of processes, by name, as a file of https://www.speedscope.app, a profile for each thread.

    >>> profile = Profile(2.0, [("a.py", 1, "main"), ("a.py", 9, "step")], {"MainThread": [([0, 1], 3), ([0], 1)]})
    >>> file = speedscope("two ranks", [("actor:0", profile)])
    >>> [frame["name"] for frame in file["shared"]["frames"]], file["profiles"][0]["weights"]
    (['main', 'step'], [1.5, 0.5])
    """
    frames: dict[Place, int] = {}
    found = []
    for process, profile in profiles:
        numbers = [frames.setdefault(place, len(frames)) for place in profile.places]
        for thread, stacks in sorted(profile.counts.items(), key=lambda each: each[0] != "MainThread"):
            each_s = profile.seconds / max(1, sum(count for _, count in stacks))
            found.append(
                {
                    "type": "sampled",
                    "name": f"{process} {thread}",
                    "unit": "seconds",
                    "startValue": 0,
                    "endValue": profile.seconds,
                    "samples": [[numbers[place] for place in stack] for stack, _ in stacks],
                    "weights": [count * each_s for _, count in stacks],
                }
            )
    shared = [{"name": name, "file": file, "line": line} for file, line, name in frames]
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": title,
        "exporter": "rlinf",
        "activeProfileIndex": 0,
        "shared": {"frames": shared},
        "profiles": found,
    }


def take_profile(
    messenger: Messenger, ranks: Sequence[KnownRank], seconds: float, rate_hz: float, path: Path
) -> None:
    """Have ranks look where they are for some seconds, and write what they saw into a file.

    Raises:
        ResultTimeout: none of them answers.
        OSError: the file cannot be written.
    """
    with open(path, "wb", opener=private_file):  # before anybody waits for it
        pass
    wanted, limit_s = TakeProfile(seconds, rate_hz), seconds + SENDING_S
    asked = {
        str(rank.address): PROFILE.ask(messenger, rank.endpoint, wanted, timeout_s=limit_s)
        for rank in ranks
        if rank.endpoint is not None
    }
    found: list[tuple[str, Profile]] = []
    for name, answer in asked.items():
        try:
            found.append((name, PROFILE.answer(answer.result())))
        except CommError as error:
            _log.warning("the profile in %s is without %s: %s", path, name, error)
    if not found:
        raise ResultTimeout("profile()", limit_s, [str(rank.address) for rank in ranks])
    path.write_text(json.dumps(speedscope(", ".join(name for name, _ in found), found)), encoding="utf-8")
