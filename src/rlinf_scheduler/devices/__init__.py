"""Objects on a device that other ranks of that device read there: staged once, opened once, never through the host.

pool.py          which bucket is filled next, and when there is one more or one less: pure
open_buckets.py  which buckets of others are open here, and when one is closed: pure
driver.py        what a device can do; `cuda_driver.py` does it with CUDA
records.py       what is said of buckets
staging.py       this process's buckets, from what is put into them until nobody reads it
imports.py       the buckets of others
barred.py        whose buckets could not be opened here lately: pure
devices.py       all of that for one process
landing.py       objects in buckets that were passed on, on their way to their takers
items.py         those of them that are items of channels
pins.py          which blocks of shared memory devices read by themselves, and for how long: pure
pinning.py       pins what arrives in them
"""

from rlinf_scheduler.devices.devices import Devices
from rlinf_scheduler.devices.staging import StagedPayload

__all__ = ["Devices", "StagedPayload"]
