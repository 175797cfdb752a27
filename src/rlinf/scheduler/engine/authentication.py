"""How to join a Ray that somebody else started: with a token or without, as that Ray wants it.

Ray sends a token only where `RAY_AUTH_MODE=token` is set, and refuses whoever sends none, 20 s later and without a
word on it. Here that Ray is asked first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from rlinf.scheduler.engine.gcs_question import GcsAnswer, ask_gcs
from rlinf.scheduler.engine.ray_token import (
    KUBERNETES_VARIABLE,
    MODE_VARIABLE,
    PLACES,
    TOKEN_VARIABLE,
    find_token,
)
from rlinf.scheduler.errors import ClusterError, ClusterTimeout

TOKEN, DISABLED = "token", "disabled"
_TLS_VARIABLE = "RAY_USE_TLS"
_ATTEMPT_TIMEOUT_S = 2.0
_ATTEMPT_PAUSE_S = 0.25


def host_and_port(address: str) -> tuple[str, int]:
    """An address of Ray's, "HOST:PORT", as its two parts.

    Raises:
        ClusterError: it is something else.
    """
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ClusterError(f"{address!r} is not the address of a Ray cluster: 'HOST:PORT', 'auto' or 'local'")
    return host.strip("[]"), int(port)


def authentication_at(address: str, environment: Mapping[str, str], timeout_s: float) -> str:
    """The authentication mode with which this process can join the Ray at `address`: "token" or "disabled".

    "" where that cannot be asked for: Ray's own TLS is on, or Kubernetes checks the tokens.

    Args:
        address: HOST:PORT.
        environment: the variables in which Ray looks for mode and token.
        timeout_s: how long to wait for an answer, in seconds.

    Raises:
        ClusterError: that Ray would refuse this process; the text names mode and token.
        ClusterTimeout: no Ray answers there before the deadline.
    """
    if _is_on(environment, _TLS_VARIABLE) or _is_on(environment, KUBERNETES_VARIABLE):
        return ""
    mode = environment.get(MODE_VARIABLE, "").strip().lower()
    if _patient_answer(address, timeout_s) is GcsAnswer.ACCEPTED:
        if mode == TOKEN:
            raise ClusterError(
                f"the Ray at {address} runs without authentication (mode 'disabled'), and here {MODE_VARIABLE}=token "
                "is set: unset it to join all the same, or start that Ray anew with a token"
            )
        return DISABLED
    if mode not in ("", TOKEN):
        raise ClusterError(
            f"the Ray at {address} asks for a token (mode 'token'), and here {MODE_VARIABLE}={mode} is set: unset it"
        )
    token = find_token(environment)
    if token is None:
        raise ClusterError(
            f"the Ray at {address} asks for a token (mode 'token'), and there is none here: {PLACES} were looked at; "
            "copy the token of the machine where that Ray was started into ~/.ray/auth_token, with mode 0600"
        )
    if ask_gcs(*host_and_port(address), token.value, _ATTEMPT_TIMEOUT_S) is not GcsAnswer.ACCEPTED:
        other = f", or set {TOKEN_VARIABLE}" if token.path is not None else ""
        raise ClusterError(
            f"the Ray at {address} (mode 'token') refuses {token}: it was started with another one; copy that one "
            f"from the machine where that Ray was started{other}"
        )
    return TOKEN


def _patient_answer(address: str, timeout_s: float) -> GcsAnswer:
    """What a Ray says to somebody without a token."""
    host, port = host_and_port(address)
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while True:
        answer = ask_gcs(host, port, None, _ATTEMPT_TIMEOUT_S)
        if answer in (GcsAnswer.ACCEPTED, GcsAnswer.REFUSED):
            return answer
        if time.monotonic() >= deadline:
            what = (
                f"no Ray answers at {address}"
                if answer is GcsAnswer.NOBODY
                else f"what listens at {address} does not answer as a Ray does"
            )
            raise ClusterTimeout(f"{what}, after {timeout_s:.0f} s")
        pause.wait(min(_ATTEMPT_PAUSE_S, max(0.0, deadline - time.monotonic())))


def _is_on(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").strip().lower() in ("1", "true")
