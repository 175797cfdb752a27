"""Objects on a device that other ranks of that device read there: staged once, opened once, never through the host."""

from rlinf_scheduler.devices.devices import Devices
from rlinf_scheduler.devices.staging import StagedPayload

__all__ = ["Devices", "StagedPayload"]
