"""What every worker's process says of itself when it is asked: a rank's, and those of workers below one."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.breakpoints import serve_breakpoints
from rlinf_scheduler.host.info import Role
from rlinf_scheduler.observe.own_activity import OwnActivity
from rlinf_scheduler.observe.own_stats import OwnStats
from rlinf_scheduler.observe.process_stats import ProcessStats
from rlinf_scheduler.observe.reasons import offer_reasons
from rlinf_scheduler.rooms import has_room, of_room
from rlinf_scheduler.session import Session


def be_observed(session: Session) -> None:
    """Take part in what is told of the job: stacks, measurements, reasons, profiles, fallbacks, breakpoints."""
    session.service(OwnActivity)
    session.service(OwnStats).add(partial(add_place, session))
    offer_reasons(session)
    tell_of_fallbacks(session)
    if has_room("profiling"):
        of_room("profiling.sampled:serve_profiles")(session)
    serve_breakpoints(session.name, session.messenger.run_directory)


def tell_of_fallbacks(session: Session) -> None:
    """Tell the job's home why, if this process has to do without shared memory."""
    messenger = session.messenger
    messenger.payloads.when_without(
        lambda why: messenger.notify(session.home, protocol.FELL_BACK, protocol.FellBack(why))
    )


def add_place(session: Session, stats: ProcessStats) -> ProcessStats:
    """Add where a worker is, once it knows."""
    role = session.fact(Role)
    if role is None:
        return stats
    placement = role.info.placement
    devices = placement.local_hardware_ranks if placement.has_accelerators else ()
    memory = stats.device_memory
    if placement.isolate_gpu:  # then it numbers those that it has
        memory = tuple(
            replace(each, index=devices[each.index]) for each in memory if each.index < len(devices)
        )
    return replace(
        stats,
        node_rank=placement.node_rank,
        devices=devices,
        num_restarts=role.info.num_restarts,
        device_memory=memory,
    )
