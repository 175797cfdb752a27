"""The end of a worker's process when nobody can reach it any more."""

import threading

from rlinf_scheduler.host.host import Hosting
from rlinf_scheduler.host.protocol import HostSpec

DEADLINE_S = 60.0


def test_a_worker_whose_io_thread_ends_does_not_wait_for_calls_any_more(new_messenger, secret):
    driver = new_messenger("driver")
    here = driver.endpoint
    spec = HostSpec("launch", "actor", 1, here, here, secret, "127.0.0.1", False, True, (), 30, 60.0)
    hosting = Hosting(spec)
    calls = threading.Thread(target=hosting.calls.run, daemon=True)
    calls.start()
    assert calls.is_alive()

    def die():
        raise SystemExit("the I/O thread")

    hosting.session.messenger.submit(die)
    calls.join(DEADLINE_S)
    assert not calls.is_alive()
