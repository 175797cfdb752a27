"""A profile of some ranks, in one file."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from rlinf_scheduler.comm import Messenger
from rlinf_scheduler.comm.rundir import private_file
from rlinf_scheduler.errors import CommError, ResultTimeout
from rlinf_scheduler.observe.profiling import PROFILE, Profile, TakeProfile, speedscope
from rlinf_scheduler.worker.processes import LaunchedRank

# How long after its end a rank may take to send what it has seen.
SENDING_S = 10.0
_log = logging.getLogger(__name__)


def take_profile(
    messenger: Messenger, ranks: Sequence[LaunchedRank], seconds: float, rate_hz: float, path: Path
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
