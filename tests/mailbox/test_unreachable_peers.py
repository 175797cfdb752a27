"""A send and a recv between machines whose cable is pulled say why they did not end in time."""

import pytest

from machine_peers import join
from rlinf_scheduler.errors import CommTimeout
from rlinf_scheduler.mailbox import open_mailbox

DEADLINE_S = 60.0
# A silence is noticed within 5 s.
TIMEOUT_S = 7.0


def test_a_send_and_a_recv_that_time_out_say_that_the_peer_is_unreachable(machines, start_on, secret):
    with join(secret, machines.left.address, "env:0") as session:
        start_on(machines.right, "trade", session.messenger.endpoint, 2)
        mailbox = session.service(open_mailbox)
        session.directory.register("env:0", session.messenger.endpoint)
        mailbox.send("there", "rollout:0", timeout_s=DEADLINE_S).wait()
        assert mailbox.recv("rollout:0", timeout_s=DEADLINE_S).wait() == "there"
        machines.unplug()
        ends = {
            "an item": mailbox.recv("rollout:0", timeout_s=TIMEOUT_S),
            "its acknowledgement": mailbox.send("lost", "rollout:0", timeout_s=TIMEOUT_S),
        }
        for awaited, end in ends.items():
            with pytest.raises(
                CommTimeout, match=rf"waiting for {awaited}; it is unreachable for \d+\.\d s: "
            ):
                end.wait(DEADLINE_S)
