"""RLinf's name of a pair's process groups, which here are none."""

from rlinf.scheduler.absent import absent

MultiChannelProcessGroup = absent(
    "MultiChannelProcessGroup",
    __name__,
    "no process group carries what workers send; use `Worker.send`, `recv` and `broadcast`",
)
