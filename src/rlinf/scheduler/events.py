"""Events of a job, as records."""

from rlinf_scheduler.events import *  # noqa: F403
