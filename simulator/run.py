"""Tell one story: run its world to the end, or to the first promise that is broken."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from simulator.admission import AdmissionPart
from simulator.cluster import Cluster, Part
from simulator.device_items import DeviceItemsPart
from simulator.devices import DevicePart
from simulator.durable_channel import DurableChannelPart
from simulator.machine_facts import machine_of
from simulator.machines import Machines
from simulator.mailbox import MailboxPart
from simulator.pinning import PinningPart
from simulator.processes import errors_are_found
from simulator.product import ProductPart
from simulator.script import Script, draw_script
from simulator.weights import WeightsPart
from simulator.world import Violation, World


def product_channel(cluster: Cluster, script: Script) -> ProductPart:
    """Return the channel of a story, of the product."""
    return (DurableChannelPart if script.durable else ProductPart)(cluster, script)


PRODUCT = (product_channel,)
"""The parts that run the product."""
PARTS = (MailboxPart, WeightsPart, AdmissionPart, DevicePart, DeviceItemsPart, PinningPart)


@dataclass(frozen=True, slots=True)
class Report:
    """What one story showed.

    Attributes:
        script: the story.
        violation: the promise that was broken; None if all were kept.
        about: what the violation concerns: numbers of calls and items, names of processes.
        history: every event as (time in µs, who, what, details...).
        digest: what identifies the history.
    """

    script: Script
    violation: str | None
    about: frozenset[Any]
    history: tuple[tuple[Any, ...], ...]
    digest: str


def simulate(seed: int, machines: Machines | None = None) -> Report:
    """Tell the story of a seed; the same seed gives the same history.

    >>> simulate(7).violation is None, simulate(7).digest == simulate(7).digest
    (True, True)
    """
    return run_script(draw_script(seed), machines)


@contextmanager
def collected_between_stories() -> Iterator[None]:
    """Let the collector run between stories only: what it drops is said in the story, whenever it comes."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        gc.collect(1)  # what the destructors of the others kept
        if enabled:
            gc.enable()


def run_script(
    script: Script, machines: Machines | None = None, parts: tuple[Callable[..., Part], ...] = ()
) -> Report:
    """Tell a story of these parts, or of all that can tell it."""
    with collected_between_stories():
        return _tell(script, machines or Machines(), parts or (*PARTS, *PRODUCT))


def _tell(script: Script, machines: Machines, parts: tuple[Callable[..., Part], ...]) -> Report:
    world = World(script.seed)
    violation: str | None = None
    about: frozenset[Any] = frozenset()
    try:
        with errors_are_found(), machine_of(world):
            Cluster(world, script, machines).run(parts)
    except Violation as broken:
        violation, about = str(broken), broken.about
    except Exception as error:  # noqa: BLE001 - the machines under test end here, whatever they raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        violation = f"{where.name} raises {error!r} in line {where.lineno} of {where.filename}"
    if violation is not None:
        world.note("checker", "finds", violation)
    return Report(script, violation, about, tuple(world.history), world.digest())
