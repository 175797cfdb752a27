"""Ray's token: where it lies, in Ray's own order, and how one is made that nobody else can read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlinf.scheduler.errors import ClusterError

MODE_VARIABLE = "RAY_AUTH_MODE"
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # noqa: S105 - its name
PATH_VARIABLE = "RAY_AUTH_TOKEN_PATH"
# A token of another kind, which Ray reads and checks in its own way.
KUBERNETES_VARIABLE = "RAY_ENABLE_K8S_TOKEN_AUTH"

PLACES = f"{TOKEN_VARIABLE}, {PATH_VARIABLE} and ~/.ray/auth_token"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class RayToken:
    """A token and where it was found.

    Attributes:
        value: the secret.
        source: where it lies, for people: a variable or a file.
        path: the file, or None.
    """

    value: str = field(repr=False)
    source: str
    path: Path | None = None

    @property
    def fingerprint(self) -> str:
        """Eight letters that are the same for the same token, and do not give it away."""
        return hashlib.sha256(self.value.encode()).hexdigest()[:8]

    def __str__(self) -> str:
        return f"the token of {self.source} (fingerprint {self.fingerprint})"


def home_token_path(environment: Mapping[str, str]) -> Path:
    """Where Ray looks when no variable says where."""
    home = environment.get("HOME")
    return (Path(home) if home else Path.home()) / ".ray" / "auth_token"


def find_token(environment: Mapping[str, str]) -> RayToken | None:
    """The token that Ray would take: the variable's, that of the file it names, that of the home folder.

    Raises:
        ClusterError: `RAY_AUTH_TOKEN_PATH` names a file that cannot be read or is empty.
    """
    value = environment.get(TOKEN_VARIABLE, "").strip()
    if value:
        return RayToken(value, f"the variable {TOKEN_VARIABLE}")
    named = environment.get(PATH_VARIABLE, "").strip()
    path = Path(named) if named else home_token_path(environment)
    try:
        value = path.read_text().strip()
    except OSError as error:
        if named:
            raise ClusterError(
                f"{PATH_VARIABLE} names {named}, which cannot be read: {error.strerror}"
            ) from error
        return None
    if named and not value:
        raise ClusterError(f"{PATH_VARIABLE} names {named}, which is empty")
    return RayToken(value, str(path), path) if value else None


def make_token(path: Path) -> RayToken:
    """A new token in a file that only this user can read; if another process made it meanwhile, that one."""
    return store_token(path, secrets.token_hex(32))


def store_token(path: Path, value: str) -> RayToken:
    """Put a token into a new file of mode 0600; what is in the file, where one is there.

    Raises:
        ClusterError: the file cannot be written, or it is empty.
    """
    written = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(written, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(value)
            # Whole or not at all, and never over another's.
            with contextlib.suppress(FileExistsError):
                os.link(written, path)
        finally:
            written.unlink()
        found = path.read_text().strip()
    except OSError as error:
        raise ClusterError(f"no token can be kept in {path}: {error.strerror}") from error
    if not found:
        raise ClusterError(f"{path} is there and is empty: remove it")
    return RayToken(found, str(path), path)


def keep_to_oneself(token: RayToken) -> bool:
    """Take from all others the right to read a token's file, if it is ours; whether somebody had it.

    Ray writes that file so that everybody may read it.
    """
    if token.path is None:
        return False
    status = token.path.stat()
    if status.st_uid != os.getuid() or not stat.S_IMODE(status.st_mode) & _OTHERS:
        return False
    token.path.chmod(0o600)
    return True


def readable_by_others(token: RayToken) -> bool:
    """Whether other users of this machine can read the file that a token lies in."""
    if token.path is None:
        return False
    try:
        return bool(stat.S_IMODE(token.path.stat().st_mode) & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        return False


def own_token(environment: Mapping[str, str]) -> RayToken:
    """The token to start a Ray with: the one that is there, else a new one in the home folder.

    Raises:
        ClusterError: it cannot be read or written.
    """
    token = find_token(environment) or make_token(home_token_path(environment))
    keep_to_oneself(token)
    return token
