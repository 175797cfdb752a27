"""Names of parts that RLinf's scheduler is made of, and this one is not: they can be imported, and say what to use."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from typing import TYPE_CHECKING, Any, Never

_CONNECTED = (
    "workers are connected when they first exchange something; use `Worker.send`, `recv` and `broadcast`"
)
_OF_ONE_SIZE = (
    "groups keep their sizes while they run; set `cluster.auto_scheduler: false` and give each component its share in "
    "`component_placement`, or share accelerators with `Worker.device_lock`"
)
# What there is instead, by module and name; the modules have nothing else.
_INSTEAD = {
    "collective.collective": {"Collective": _CONNECTED},
    "collective.collective_group": {
        "CollectiveGroup": "no collective group carries what workers send: how bytes go is chosen for each pair; use "
        "`Worker.send`, `recv` and `broadcast`, and `options=` of them"
    },
    "collective.multi_channel_pg": {
        "MultiChannelProcessGroup": "no process group carries what workers send; use `Worker.send`, `recv` and "
        "`broadcast`"
    },
    "dynamic_scheduler.manager": {"RolloutScalingScheduler": _OF_ONE_SIZE},
    "dynamic_scheduler.scheduler_worker": {"SchedulerWorker": _OF_ONE_SIZE},
    "manager.coll_manager": {"CollectiveManager": _CONNECTED, "CollectiveGroupInfo": _CONNECTED},
    "manager.lock_manager": {
        "DeviceLockManager": "the job's driver gives turns; use `Worker.device_lock`",
        "PortLockManager": "a port is kept by the process that got it; use `Worker.acquire_free_port`",
    },
    "manager.manager": {
        "Manager": "no manager is a process of its own: what all know is in the job's directory; use `Cluster.groups` "
        "and `channels`"
    },
    "manager.node_manager": {
        "NodeManager": "every process of a job knows its nodes; use `Cluster().topology`, or `get_node_info`"
    },
}
_SCHEDULER = __name__.rpartition(".")[0]


class _Absent(type):
    """The class of such names."""

    _rlinf_instead: str

    def __getattr__(cls, name: str) -> Never:
        raise AttributeError(_text(cls, f".{name}"), name=name, obj=cls)

    def __call__(cls, *_args: object, **_options: object) -> Never:
        raise TypeError(_text(cls, "()"))


def absent(name: str, module: str, instead: str) -> type[Any]:
    """Return what stands for a class that does not exist here.

    >>> absent("Queue", "rlinf.scheduler.example", "there are none; use `Channel`").put
    Traceback (most recent call last):
    AttributeError: Queue.put is a part of RLinf's own scheduler: here there are none; use `Channel`

    `instead` says what there is here, and what to use, as the end of a sentence.
    """

    def on_instance(self: object, attribute: str) -> Never:
        raise AttributeError(_text(type(self), f".{attribute}"), name=attribute, obj=self)

    return _Absent(name, (), {"__module__": module, "__getattr__": on_instance, "_rlinf_instead": instead})


def add_absent_modules(package: str) -> None:
    """Put the modules below a package that have such names only where `import` finds them."""
    for below, instead in _INSTEAD.items():
        name = f"{_SCHEDULER}.{below}"
        if name.rpartition(".")[0] == package:
            module = sys.modules[name] = module_from_spec(ModuleSpec(name, None))
            vars(module).update({each: globals()[each] for each in instead})
            setattr(sys.modules[package], name.rpartition(".")[2], module)


def _text(cls: type, what: str) -> str:
    return f"{cls.__name__}{what} is a part of RLinf's own scheduler: here {vars(cls)['_rlinf_instead']}"


for _module, _names in _INSTEAD.items():
    for _name, _what in _names.items():
        globals()[_name] = absent(_name, f"{_SCHEDULER}.{_module}", _what)

if TYPE_CHECKING:

    def __getattr__(name: str) -> type[Any]: ...
