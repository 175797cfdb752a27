"""RLinf's names of what moves accelerators between groups while they run."""

from rlinf.scheduler.absent import absent

INSTEAD = (
    "groups keep their sizes while they run; set `cluster.auto_scheduler: false` and give each component its share in "
    "`component_placement`, or share accelerators with `Worker.device_lock`"
)
RolloutScalingScheduler = absent("RolloutScalingScheduler", __name__, INSTEAD)
