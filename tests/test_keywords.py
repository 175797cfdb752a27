"""Options that are misspelt are named, with the nearest one, before anything starts."""

import pytest

from rlinf.scheduler import Channel, Cluster, Worker
from rlinf.scheduler.errors import CallArgumentError
from rlinf.scheduler.keywords import explains_arguments
from rlinf.testing import LocalRuntime


class Idle(Worker):
    """Does nothing."""


@pytest.mark.parametrize(
    ("call", "what", "option"),
    [
        (lambda: Idle.create_group().launch(None, on_failre="restart"), "GroupBuilder.launch", "on_failure"),
        (lambda: Channel.create("rollouts", durabel="/data"), "Channel.create", "durable"),
        (lambda: Idle.create_channel("rollouts", maxsise=8), "Idle.create_channel", "maxsize"),
        (lambda: Channel.connect("rollouts", timeout=8), "Channel.connect", "timeout_s"),
        (lambda: Cluster(simulat="2x8"), "Cluster", "simulate"),
    ],
)
def test_a_misspelt_option_is_answered_by_the_nearest_one_and_by_what_else_there_is(call, what, option):
    with pytest.raises(CallArgumentError) as caught:
        call()
    told = str(caught.value)
    assert told.startswith(f"{what}(): got an unexpected keyword argument ")
    assert f"; did you mean '{option}'?; it takes (" in told
    assert "=" in told.rpartition("it takes")[2]


def test_a_misspelt_option_of_a_part_of_a_channel_names_the_channel():
    with LocalRuntime():
        channel = Channel.create("rollouts")
        for call in (channel.lease, channel.leases):
            with pytest.raises(
                CallArgumentError, match=r"Channel\.lease\(\): .*'ttl'; did you mean 'ttl_s'\?"
            ):
                call(ttl=3)
        with pytest.raises(
            CallArgumentError, match=r"Channel\.shard\(\): missing 1 required positional argument"
        ):
            channel.shard(1)


def test_a_type_error_of_the_body_is_left_as_it_is():
    class Adder:
        @explains_arguments
        def add(self, one, other):
            return one + other

    assert Adder().add(1, other=2) == 3
    with pytest.raises(TypeError, match="unsupported operand") as caught:
        Adder().add(1, other="2")
    assert type(caught.value) is TypeError
