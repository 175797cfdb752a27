"""Objects to bytes and back; arrays and tensors as they lie in memory."""

from rlinf_scheduler.comm.codec.objects import Encoded, decode, encode

__all__ = ["Encoded", "decode", "encode"]
