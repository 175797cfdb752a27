"""RLinf's names of what sets up collective groups."""

from rlinf.scheduler.absent import absent

_INSTEAD = (
    "workers are connected when they first exchange something; use `Worker.send`, `recv` and `broadcast`"
)
CollectiveManager = absent("CollectiveManager", __name__, _INSTEAD)
CollectiveGroupInfo = absent("CollectiveGroupInfo", __name__, _INSTEAD)
