"""How to join a Ray that somebody else started: with a token or without, as that Ray wants it.

Ray sends a token only where `RAY_AUTH_MODE=token` is set, and refuses a client without one, 20 s later and without a
word on it. Here that Ray is asked first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlinf_scheduler.errors import ClusterError, ClusterTimeout
from rlinf_scheduler.ray_backend.gcs_question import GcsAnswer, ask_gcs
from rlinf_scheduler.ray_backend.ray_token import (
    KUBERNETES_VARIABLE,
    MODE_VARIABLE,
    OWN_FILE,
    PATH_VARIABLE,
    PLACES,
    TOKEN_VARIABLE,
    RayToken,
    find_tokens,
)

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
    mode = environment.get(MODE_VARIABLE, "").strip().lower()
    if _patient_answer(address, timeout_s) is GcsAnswer.ACCEPTED:
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
    return Access(TOKEN, _accepted_token(address, find_tokens(environment)))


def _accepted_token(address: str, tokens: Sequence[RayToken]) -> RayToken:
    if not tokens:
        raise ClusterError(
            f"the Ray at {address} asks for a token (mode 'token'), and there is none here: {PLACES} were looked at; "
            f"copy the token of the machine where that Ray was started into {OWN_FILE}, with mode 0600"
        )
    for token in tokens:
        if ask_gcs(*host_and_port(address), token.value, _ATTEMPT_TIMEOUT_S) is GcsAnswer.ACCEPTED:
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
        _patient_answer(address, timeout_s)


def _is_asked_by_ray_alone(environment: Mapping[str, str]) -> bool:
    return _is_on(environment, _TLS_VARIABLE) or _is_on(environment, KUBERNETES_VARIABLE)


def _patient_answer(address: str, timeout_s: float) -> GcsAnswer:
    """What a Ray says to somebody without a token."""
    host, port = host_and_port(address)
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while True:
        # Not longer than the time that is left, though long enough to be answered.
        left_s = max(_SHORTEST_ATTEMPT_S, deadline - time.monotonic())
        answer = ask_gcs(host, port, None, min(_ATTEMPT_TIMEOUT_S, left_s))
        if answer in (GcsAnswer.ACCEPTED, GcsAnswer.REFUSED):
            return answer
        if time.monotonic() >= deadline:
            what = (
                f"no Ray answers at {address}"
                if answer is GcsAnswer.NOBODY
                else f"what listens at {address} does not answer as a Ray does"
            )
            raise ClusterTimeout(f"{what}, after {timeout_s:.1f} s")
        pause.wait(min(_ATTEMPT_PAUSE_S, max(0.0, deadline - time.monotonic())))


def _is_on(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").strip().lower() in ("1", "true")
