"""What a driver asks a head for that is gone."""

import time

import pytest
from ray import _raylet

from rlinf_scheduler.ray_backend.patches import unhurried

NOBODY = "127.0.0.1:1"
PAUSE_S = 0.1


@pytest.mark.parametrize("kind", ["GcsErrorSubscriber", "GcsLogSubscriber"])
def test_a_head_that_is_gone_is_asked_at_leisure_until_nobody_wants_to_hear(kind):
    rays_own = getattr(_raylet, kind)
    with unhurried():
        subscriber = getattr(_raylet, kind)(address=NOBODY, worker_id=b"w" * 28)
    assert getattr(_raylet, kind) is rays_own
    began = time.monotonic()
    for _ in range(3):
        subscriber.poll()
    assert time.monotonic() - began > 2.5 * PAUSE_S
    subscriber.close()
    began = time.monotonic()
    for _ in range(1000):
        subscriber.poll()
    assert time.monotonic() - began < 500 * PAUSE_S
