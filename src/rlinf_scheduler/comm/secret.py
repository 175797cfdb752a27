"""The key that the processes of one cluster share, and what is derived from it."""

from __future__ import annotations

import hmac
import secrets

KEY_BYTES = 32


class ClusterSecret:
    """What a process must hold to talk to the others of its cluster.

    Made once by the driver with `generate()` and handed to every process through a trusted way
    (Ray's own calls). It is opaque: neither `repr` nor `str` shows it.

    Args:
        key: 32 random bytes.
    """

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            message = f"a cluster's key has {KEY_BYTES} bytes, not {len(key)}"
            raise ValueError(message)
        self._key = bytes(key)

    @classmethod
    def generate(cls) -> ClusterSecret:
        """A fresh secret from the operating system's random source."""
        return cls(secrets.token_bytes(KEY_BYTES))

    def exported(self) -> bytes:
        """The key itself, for a place that only this user can read."""
        return self._key

    def mac(self, label: bytes, *parts: bytes) -> bytes:
        """HMAC-SHA256 of `parts` under this key; `label` keeps one use from standing in for another."""
        return hmac.digest(self._key, b"\0".join((label, *parts)), "sha256")

    def derive(self, label: bytes) -> bytes:
        """A 32-byte key for another purpose; it tells nothing about this one."""
        return self.mac(b"derive", label)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClusterSecret):
            return NotImplemented
        return hmac.compare_digest(self._key, other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return "ClusterSecret(...)"

    def __reduce__(self) -> tuple[type[ClusterSecret], tuple[bytes]]:
        return ClusterSecret, (self._key,)
