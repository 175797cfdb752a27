"""What a signal handler raises arrives as it is, and the item stays."""

import regression_roles as roles
from job_processes import DEADLINE_S, Job


def test_a_handler_that_raises_while_an_item_is_decoded_makes_it_no_bad_item():
    with Job() as job:
        _, channel = job.hold()
        channel.put(roles.SignalsWhileRead(7), timeout_s=DEADLINE_S)
        victim = job.start(roles.get_while_a_signal_comes, channel.name)
        assert victim.result() == ("Alarm", 7)
