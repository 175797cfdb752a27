"""How a Ray is joined or started, with a token or without; where tokens lie, and how one is made.

A token in `~/.ray/auth_token` turns authentication on for every Ray that its user starts, and for those who know
nothing of it. So ours lies in a file of our own, and Ray's file is only read: to join a Ray that others have started.

Ray sends a token only where `RAY_AUTH_MODE=token` is set, and refuses a client without one, 20 s later and without a
word on it. Here that Ray is asked first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rlinf_scheduler.errors import ClusterError, ClusterTimeout
from rlinf_scheduler.ray_backend.gcs_question import GcsAnswer, ask_gcs

MODE_VARIABLE = "RAY_AUTH_MODE"
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # noqa: S105 - its name
PATH_VARIABLE = "RAY_AUTH_TOKEN_PATH"
# A token of another kind, which Ray reads and checks in its own way.
KUBERNETES_VARIABLE = "RAY_ENABLE_K8S_TOKEN_AUTH"

OWN_FILE, RAYS_FILE = "~/.rlinf/ray_token", "~/.ray/auth_token"
PLACES = f"{TOKEN_VARIABLE}, {PATH_VARIABLE}, {OWN_FILE} and {RAYS_FILE}"
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


def own_token_path(environment: Mapping[str, str]) -> Path:
    """Where the token lies that Rays of ours are started with."""
    return _in_home(OWN_FILE, environment)


def find_tokens(environment: Mapping[str, str]) -> list[RayToken]:
    """Return the tokens to join a Ray with: that of the variables alone, else ours and that of Ray's own file.

    Raises:
        ClusterError: `RAY_AUTH_TOKEN_PATH` names a file that cannot be read or is empty.
    """
    named = _named_token(environment)
    if named is not None:
        return [named]
    files = (_in_home(file, environment) for file in (OWN_FILE, RAYS_FILE))
    return [token for token in map(_token_in, files) if token is not None]


def token_in_rays_file(environment: Mapping[str, str]) -> RayToken | None:
    """Return the token with which Ray turns authentication on wherever nobody has said a mode."""
    return _token_in(_in_home(RAYS_FILE, environment))


def _named_token(environment: Mapping[str, str]) -> RayToken | None:
    value = environment.get(TOKEN_VARIABLE, "").strip()
    if value:
        return RayToken(value, f"the variable {TOKEN_VARIABLE}")
    named = environment.get(PATH_VARIABLE, "").strip()
    if not named:
        return None
    try:
        value = Path(named).read_text().strip()
    except OSError as error:
        raise ClusterError(
            f"{PATH_VARIABLE} names {named}, which cannot be read: {error.strerror}"
        ) from error
    if not value:
        raise ClusterError(f"{PATH_VARIABLE} names {named}, which is empty")
    return RayToken(value, named, Path(named))


def _in_home(file: str, environment: Mapping[str, str]) -> Path:
    home = environment.get("HOME")
    return (Path(home) if home else Path.home()) / file.removeprefix("~/")


def _token_in(path: Path) -> RayToken | None:
    try:
        value = path.read_text().strip()
    except OSError:
        return None
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
    """Take from all others the right to read a token's file, if it is this user's; whether somebody had it."""
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
    """Return the token to start a Ray with: that of the variables, else ours, which is made if it is not there.

    Raises:
        ClusterError: it cannot be read or written.
    """
    named = _named_token(environment)
    if named is not None:
        return named
    path = own_token_path(environment)
    token = _token_in(path) or make_token(path)
    keep_to_oneself(token)
    return token


# -- joining -----------------------------------------------------------------------------------------


TOKEN, DISABLED = "token", "disabled"
_TLS_VARIABLE = "RAY_USE_TLS"
_ATTEMPT_TIMEOUT_S = 2.0
_SHORTEST_ATTEMPT_S = 0.5
_ATTEMPT_PAUSE_S = 0.25


@dataclass(frozen=True, slots=True)
class Access:
    """How a Ray is joined or started.

    Attributes:
        mode: "token" or "disabled"; "": as Ray finds it out.
        token: what proves the right to join, in mode "token".
    """

    mode: str = ""
    token: RayToken | None = None

    def settings(self) -> dict[str, str]:
        """Return the variables with which Ray's processes have this mode and take this token."""
        settings = {MODE_VARIABLE: self.mode} if self.mode else {}
        if self.token is not None and self.token.path is not None:
            settings[PATH_VARIABLE] = str(self.token.path)
        return settings


def host_and_port(address: str) -> tuple[str, int]:
    """An address of Ray's, "HOST:PORT", as its two parts.

    Raises:
        ClusterError: it is something else.
    """
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ClusterError(f"{address!r} is not the address of a Ray cluster: 'HOST:PORT', 'auto' or 'local'")
    return host.strip("[]"), int(port)


def authentication_at(address: str, environment: Mapping[str, str], timeout_s: float) -> Access:
    """Return how this process can join the Ray at `address`.

    The mode is "" where that cannot be asked for: Ray's own TLS is on, or Kubernetes checks the tokens.

    Args:
        address: HOST:PORT.
        environment: the variables in which Ray looks for mode and token.
        timeout_s: how long to wait for an answer, in seconds.

    Raises:
        ClusterError: that Ray would refuse this process; the text names mode and token.
        ClusterTimeout: no Ray answers there before the deadline.
    """
    if _is_asked_by_ray_alone(environment):
        return Access()
    ask = partial(_patient_answer, address, timeout_s, time.monotonic())
    mode = environment.get(MODE_VARIABLE, "").strip().lower()
    if ask() is GcsAnswer.ACCEPTED:
        if mode == TOKEN:
            raise ClusterError(
                f"the Ray at {address} runs without authentication (mode 'disabled'), and here {MODE_VARIABLE}=token "
                "is set: unset it to join all the same, or start that Ray anew with a token"
            )
        return Access(DISABLED)
    if mode not in ("", TOKEN):
        raise ClusterError(
            f"the Ray at {address} asks for a token (mode 'token'), and here {MODE_VARIABLE}={mode} is set: unset it"
        )
    return Access(TOKEN, _accepted_token(address, find_tokens(environment), ask))


def _accepted_token(
    address: str, tokens: Sequence[RayToken], ask: Callable[[RayToken], GcsAnswer]
) -> RayToken:
    if not tokens:
        raise ClusterError(
            f"the Ray at {address} asks for a token (mode 'token'), and there is none here: {PLACES} were looked at; "
            f"copy the token of the machine where that Ray was started into {OWN_FILE}, with mode 0600"
        )
    for token in tokens:
        # A Ray that is busy has refused nobody.
        if ask(token) is GcsAnswer.ACCEPTED:
            return token
    refused = " and ".join(map(str, tokens))
    other = f", or set {TOKEN_VARIABLE}" if tokens[0].path is not None else ""
    raise ClusterError(
        f"the Ray at {address} (mode 'token') refuses {refused}: it was started with another one; copy that one "
        f"from the machine where that Ray was started{other}"
    )


def wait_for_answer(address: str, environment: Mapping[str, str], timeout_s: float) -> None:
    """Wait until the Ray at `address` says anything, where it can be asked.

    Raises:
        ClusterTimeout: no Ray answers there before the deadline.
    """
    if not _is_asked_by_ray_alone(environment):
        _patient_answer(address, timeout_s, time.monotonic())


def _is_asked_by_ray_alone(environment: Mapping[str, str]) -> bool:
    return _is_on(environment, _TLS_VARIABLE) or _is_on(environment, KUBERNETES_VARIABLE)


def _patient_answer(address: str, timeout_s: float, began: float, token: RayToken | None = None) -> GcsAnswer:
    """Return what a Ray says to somebody with a token or without one: whether it lets them in.

    Args:
        began: since when `timeout_s` counts, on the monotonic clock.
    """
    host, port = host_and_port(address)
    deadline, value = began + timeout_s, None if token is None else token.value
    pause = threading.Event()
    while True:
        # Not longer than the time that is left, though long enough to be answered.
        left_s = max(_SHORTEST_ATTEMPT_S, deadline - time.monotonic())
        answer = ask_gcs(host, port, value, min(_ATTEMPT_TIMEOUT_S, left_s))
        if answer in (GcsAnswer.ACCEPTED, GcsAnswer.REFUSED):
            return answer
        if time.monotonic() >= deadline:
            if answer is GcsAnswer.NOBODY:
                what = f"no Ray answers at {address}"
            elif token is not None:
                what = f"the Ray at {address} asks for a token (mode 'token'), and says nothing to {token}"
            else:
                what = f"what listens at {address} does not answer as a Ray does"
            raise ClusterTimeout(f"{what}, after {timeout_s:.1f} s")
        pause.wait(min(_ATTEMPT_PAUSE_S, max(0.0, deadline - time.monotonic())))


def _is_on(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").strip().lower() in ("1", "true")
