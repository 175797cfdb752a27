"""Every name that RLinf's own code (August 2026) imports from its scheduler, and uses of what it imports, is ours, too.

`names.json` has them: what programs import, what RLinf's unit tests import beside that, and of each class the members
that are used, with the keywords that they are given and the order of what is given by position.
"""

import inspect
import json
from importlib import import_module
from pathlib import Path

import pytest

from rlinf.scheduler import Topology

NAMES = json.loads(Path(__file__).with_name("names.json").read_text(encoding="utf-8"))
# Where a class is that is not in `rlinf.scheduler` itself.
ELSEWHERE = {
    "DOSW1HWConfig": "rlinf.scheduler.hardware.robots",
    "DualFrankaConfig": "rlinf.scheduler.hardware.robots",
    "FrankaConfig": "rlinf.scheduler.hardware.robots",
    "GimArmConfig": "rlinf.scheduler.hardware.robots",
    "NodeGroupInfo": "rlinf.scheduler.cluster.node",
    "NodeInfo": "rlinf.scheduler.cluster.node",
    "Placement": "rlinf.scheduler.placement",
    "RolloutScalingScheduler": "rlinf.scheduler.dynamic_scheduler.manager",
    "SchedulerWorker": "rlinf.scheduler.dynamic_scheduler.scheduler_worker",
}
# What a parameter may be called by us, where RLinf's programs give it by its position.
ALSO_CALLED = {
    "cluster": "where",
    "end_hardware_rank": "end_gpu_id",
    "isolate_accelerator": "isolate_gpu",
    "key": "queue_name",
    "label": "name",
    "msg": "message",
    "node_group_label": "node_group",
    "num_hardware_per_process": "num_gpus_per_process",
    "object": "value",
    "start_hardware_rank": "start_gpu_id",
    "tag": "what",
    "target_weight": "batch_weight",
}
CONFIG = {"cluster": {"num_nodes": 1, "component_placement": {"actor": "0-3"}}}


@pytest.mark.parametrize("module", NAMES["imports"])
def test_names_that_programs_import(module):
    assert missing_of(module, NAMES["imports"][module]) == []


@pytest.mark.parametrize("module", NAMES["imports_of_tests"])
def test_names_that_only_rlinfs_unit_tests_import(module):
    assert missing_of(module, NAMES["imports_of_tests"][module]) == []


# What needs groups that change their size: it can be imported, and says when it is used what works instead.
ABSENT = "RolloutScalingScheduler", "SchedulerWorker"


@pytest.mark.parametrize("what", ABSENT)
def test_members_that_need_groups_of_other_sizes_say_what_works_instead(what):
    for name in NAMES["members"][what]:
        with pytest.raises((AttributeError, TypeError), match="auto_scheduler: false"):
            getattr(owner_of(what), name) if name != "__init__" else owner_of(what)(0)


@pytest.mark.parametrize("what", [each for each in NAMES["members"] if each not in ABSENT])
def test_members_that_programs_use(what):
    owner, made = owner_of(what), instance_of(what)
    problems = [
        problem
        for name, use in NAMES["members"][what].items()
        for problem in problems_of(owner, made, name, use)
    ]
    assert problems == []


def missing_of(module, names):
    try:
        there = import_module(module)
    except ModuleNotFoundError as error:
        return [str(error)]
    return [name for name in names if name and not hasattr(there, name)]


def owner_of(what):
    """The class, or the module of functions, that is to have these members."""
    if what == "group builder":
        return type(owner_of("Worker").create_group())
    if what == "work handle":
        return import_module("rlinf_scheduler.comm").AsyncHandle
    scheduler = import_module(ELSEWHERE.get(what, "rlinf.scheduler"))
    return scheduler if what == "functions" else getattr(scheduler, what)


def instance_of(what):
    """One of them, where its attributes can be seen on one only."""
    if what == "Worker":
        return type("Alone", (owner_of("Worker"),), {})()
    if what == "ComponentPlacement":
        return owner_of(what)(CONFIG, Topology.parse("1x4"))
    if what == "PackedPlacementStrategy":
        return owner_of(what)(start_hardware_rank=0, end_hardware_rank=3)
    if what == "NodePlacementStrategy":
        return owner_of(what)(node_ranks=[0])
    if what == "WorkerAddress":
        return owner_of(what)("actor", 0)
    return None


def problems_of(owner, made, name, use):
    """What of a member does not fit how it is used."""
    if not is_there(owner, made, name):
        yield f"{name} is missing"
    elif use is not None:
        parameters = list(inspect.signature(getattr(owner, name)).parameters.values())
        takes = {each.name for each in parameters}
        takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
        unknown = sorted(set(use.get("keywords", ())) - takes) if not takes_all else []
        if unknown:
            yield f"{name} does not take {', '.join(unknown)}"
        yield from problems_of_order(name, parameters, use.get("order", ()))


def problems_of_order(name, parameters, order):
    by_position = [
        each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return
    names = [each.name for each in by_position if each.name not in ("self", "cls")]
    for index, wanted in enumerate(order):
        there = names[index] if index < len(names) else "nothing"
        if there not in (wanted, ALSO_CALLED.get(wanted)):
            yield f"{name}: {there} is at place {index + 1}, not {wanted}"
            return


def is_there(owner, made, name):
    try:
        inspect.getattr_static(owner, name)
    except AttributeError:
        return name in annotated(owner) or has(owner if made is None else made, name)
    return True


def annotated(owner):
    return {name for each in getattr(owner, "__mro__", ()) for name in vars(each).get("__annotations__", ())}


def has(made, name):
    try:
        return hasattr(made, name)
    except Exception:  # noqa: BLE001 - it is there, and says why it has no value here
        return True


def test_a_member_that_does_not_fit_would_be_found():
    class Small:
        field: int

        def method(self, where, *, key=None): ...

    found = [
        *problems_of(Small, None, "gone", None),
        *problems_of(Small, None, "field", None),
        *problems_of(Small, None, "method", {"keywords": ["key", "tag"], "order": ["cluster", "name"]}),
    ]
    assert found == ["gone is missing", "method does not take tag", "method: nothing is at place 2, not name"]
