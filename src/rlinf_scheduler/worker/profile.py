"""A profile of some ranks, in one file."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from rlinf_scheduler.comm import Messenger
from rlinf_scheduler.comm.rundir import private_file
from rlinf_scheduler.errors import CommError, ResultTimeout
from rlinf_scheduler.observe.levels import SURVEY, LevelRequest
from rlinf_scheduler.observe.profiling import PROFILE, Profile, TakeProfile, speedscope
from rlinf_scheduler.worker.launched_rank import LaunchedRank

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
    wanted = LevelRequest.at(PROFILE, TakeProfile(seconds, rate_hz))
    limit_s = seconds + SENDING_S
    asked = {
        str(rank.address): messenger.request(
            rank.endpoint, SURVEY, wanted, timeout_s=limit_s, reply_type=Profile
        )
        for rank in ranks
        if rank.endpoint is not None
    }
    found: list[tuple[str, Profile]] = []
    for name, answer in asked.items():
        try:
            found.append((name, answer.result().head))
        except CommError as error:
            _log.warning("the profile in %s is without %s: %s", path, name, error)
    if not found:
        raise ResultTimeout("profile()", limit_s, [str(rank.address) for rank in ranks])
    path.write_text(json.dumps(speedscope(", ".join(name for name, _ in found), found)), encoding="utf-8")
