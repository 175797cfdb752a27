"""What a rank shares on devices: nothing if it is recorded, for a tape has to see the bytes."""

from __future__ import annotations

from rlinf_scheduler.comm.device import Devices
from rlinf_scheduler.comm.device.cuda_driver import cuda_driver, no_driver
from rlinf_scheduler.session import Session
from rlinf_scheduler.tape.tape import tape_of


def open_devices(session: Session) -> Devices:
    """What a session's process shares on devices; `session.service(open_devices)` is always the same."""
    return Devices(session.messenger, no_driver if tape_of(session).is_recording else cuda_driver)
