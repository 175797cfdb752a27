"""What Ray's own processes say is for their log files: dumps of raylets and spare workers hide the line that matters.

Ray hands every line that any of its processes writes to one function of the driver's, which prints it. Lines of actors
and tasks, users' own and ours, go on to it; the others go to the logger `rlinf.ray`, at DEBUG. All of them lie in the
`logs` folder of Ray's session too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from ray._private import worker as ray_worker

_NAME = "print_worker_logs"
_log = logging.getLogger("rlinf.ray")


def keep_off_terminal() -> Callable[[], None]:
    """Keep Ray's own messages off the terminal; gives what undoes it."""
    original = getattr(ray_worker, _NAME, None)
    if original is None:  # another version of Ray: it prints what it likes
        return _nothing

    def print_others(data: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        if is_of_ray(data):
            for line in data.get("lines", ()):
                _log.debug("%s: %s", data.get("pid"), line)
        else:
            original(data, *args, **kwargs)

    def undo() -> None:
        if getattr(ray_worker, _NAME) is print_others:
            setattr(ray_worker, _NAME, original)

    setattr(ray_worker, _NAME, print_others)
    return undo


def is_of_ray(data: Mapping[str, Any]) -> bool:
    """Whether lines are of a process of Ray's, or of a spare worker that has run nothing yet.

    >>> is_of_ray({"pid": "raylet", "lines": ["Raylet is terminated."]}), is_of_ray({"pid": 7, "actor_name": "Mine"})
    (True, False)
    """
    return not data.get("actor_name") and not data.get("task_name")


def _nothing() -> None:
    return None
