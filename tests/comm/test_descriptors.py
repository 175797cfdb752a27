"""How many descriptors a process may have."""

import resource
import subprocess
import sys

LOOK = """
import resource
from rlinf_scheduler.comm.descriptors import allow_descriptors
allow_descriptors()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def limits_with(soft, hard):
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    done = subprocess.run(
        [sys.executable, "-c", LOOK], preexec_fn=limit, capture_output=True, text=True, check=True
    )
    return tuple(map(int, done.stdout.split()))


def test_the_limit_goes_up_as_far_as_it_may_and_is_needed():
    assert limits_with(256, 4096) == (4096, 4096)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard >= 1 << 17:
        assert limits_with(1024, 1 << 17) == (1 << 16, 1 << 17)
        assert limits_with(1 << 17, 1 << 17) == (1 << 17, 1 << 17), "it is never lowered"
