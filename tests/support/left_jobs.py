"""Jobs that a test has left on the Ray that all tests share."""

import ray

from rlinf_scheduler.ray_backend.holds import holds_in_cluster
from rlinf_scheduler.ray_backend.job_servers import detached_names, kill_job_server
from waits import seen

KILLED_S = 60.0


def end_left_jobs():
    """End them and wait until their devices are free; there must be none."""
    own = ray.get_runtime_context().get_job_id()
    left = detached_names()
    for name in left:
        kill_job_server(name, KILLED_S)
    seen(lambda: [hold for hold in holds_in_cluster() if hold.job != own], lambda found: not found)
    assert not left, f"jobs that nobody has ended: {left}"
