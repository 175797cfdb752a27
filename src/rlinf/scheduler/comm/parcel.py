"""The former place of `comm.shm.parcel`."""

from rlinf.scheduler.comm.shm.parcel import Arrived, Descriptor, Written, frame_offsets, is_descriptor

__all__ = ["Arrived", "Descriptor", "Written", "frame_offsets", "is_descriptor"]
