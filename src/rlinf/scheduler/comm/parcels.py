"""The former place of `comm.shm.parcels`."""

from rlinf.scheduler.comm.shm.parcels import OFFER, SERVICE, SHARED_BYTES, WAIT_S, Parcel, Parcels

__all__ = ["OFFER", "SERVICE", "SHARED_BYTES", "WAIT_S", "Parcel", "Parcels"]
