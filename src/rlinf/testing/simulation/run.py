"""Run stories: one by its seed, or many on all cores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlinf.testing.simulation.channel import ChannelMachines, ChannelPart
from rlinf.testing.simulation.network import Network
from rlinf.testing.simulation.script import Script, draw_script
from rlinf.testing.simulation.world import Violation, World


@dataclass(frozen=True, slots=True)
class Machines:
    """Every state machine under test."""

    channel: ChannelMachines = field(default_factory=ChannelMachines)


@dataclass(frozen=True, slots=True)
class Report:
    """What one story showed.

    Attributes:
        script: the story.
        violation: the promise that was broken; None if all were kept.
        about: what the violation concerns.
        history: every event as (time in µs, who, what, details...).
        digest: what identifies the history.
    """

    script: Script
    violation: str | None
    about: frozenset[Any]
    history: tuple[tuple[Any, ...], ...]
    digest: str


def simulate(seed: int, machines: Machines | None = None) -> Report:
    """Run the story of a seed: the same seed gives the same history."""
    return run_script(draw_script(seed), machines)


def run_script(script: Script, machines: Machines | None = None) -> Report:
    """Run a story."""
    world = World(script.seed)
    violation: str | None = None
    about: frozenset[Any] = frozenset()
    try:
        part = ChannelPart(world, Network(world), script, (machines or Machines()).channel)
        world.run()
        for _ in part.finish():
            world.run()
    except Violation as broken:
        violation, about = str(broken), broken.about
        world.note("checker", "finds", violation)
    return Report(script, violation, about, tuple(world.history), world.digest())
