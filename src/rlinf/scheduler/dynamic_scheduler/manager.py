"""RLinf's names of what moves accelerators between groups while they run."""

from rlinf.scheduler.absent import absent

INSTEAD = (
    "groups keep their sizes while they run; set `cluster.auto_scheduler: false` and give each component its share in "
    "`component_placement`, or share accelerators with `Worker.device_lock`"
)
RolloutScalingScheduler = absent("RolloutScalingScheduler", __name__, INSTEAD)
ComponentManager = absent("ComponentManager", __name__, INSTEAD)
RolloutManager = absent("RolloutManager", __name__, INSTEAD)
InferenceManager = absent("InferenceManager", __name__, INSTEAD)
ActorManager = absent("ActorManager", __name__, INSTEAD)


def create_component_manager(*_args: object, **_options: object) -> object:
    """Raise: see `ComponentManager`."""
    return ComponentManager()
