"""A forked child reads in an array that its parent received what was there, or gets an error; never other bytes."""

import pytest

import regression_roles as roles
from job_processes import Job

UNCHANGED, ERROR = 0, 3


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_forked_child_never_reads_other_bytes_in_an_array_that_its_parent_dropped(transport):
    with Job(transport) as job:
        _, channel = job.hold()
        producer = job.start(roles.put_arrays, channel.name, 1 << 20)
        for number in (*[0] * roles.WARM_UP, 1):
            producer.pipe.send(number)
            assert producer.receive() == "put"
        reader = job.start(roles.fork_with_an_array, channel.name)
        assert reader.receive() == "dropped"
        # All at once, so that they take every block that was ever used.
        numbers = range(2, 2 + 2 * roles.WARM_UP)
        for number in numbers:
            producer.pipe.send(number)
            assert producer.receive() == "put"
        reader.pipe.send(len(numbers))
        assert reader.result() in (UNCHANGED, ERROR)
