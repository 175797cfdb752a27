"""Options that are misspelt are named, with the nearest one, before anything starts."""

import inspect

import pytest

from effort import case
from rlinf.scheduler import Channel, Cluster, Worker, WorkerGroup
from rlinf.testing import LocalRuntime
from rlinf_scheduler.channel import Lease, Shard, Subscription
from rlinf_scheduler.checks import explains_arguments
from rlinf_scheduler.comm import AsyncHandle
from rlinf_scheduler.errors import CallArgumentError
from rlinf_scheduler.worker import as_completed, wait_all, wait_first
from rlinf_scheduler.worker.result import GroupResult
from rlinf_scheduler.worker.stream import GroupStream


class Idle(Worker):
    """Does nothing."""


@pytest.mark.parametrize(
    ("call", "what", "option"),
    [
        (lambda: Idle.create_group().launch(None, on_failre="restart"), "GroupBuilder.launch", "on_failure"),
        (lambda: Channel.create("rollouts", durabel="/data"), "Channel.create", "durable"),
        (lambda: Idle.create_channel("rollouts", max_byts=8), "Idle.create_channel", "max_bytes"),
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


PUBLIC = (
    AsyncHandle,
    Channel,
    Cluster,
    GroupResult,
    GroupStream,
    Lease,
    Shard,
    Subscription,
    Worker,
    WorkerGroup,
)


def public_methods():
    for cls in PUBLIC:
        for name, member in inspect.getmembers_static(cls):
            function = getattr(member, "__func__", member)
            if name.startswith("_") or not inspect.isfunction(function):
                continue
            signature = inspect.signature(function)
            if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values()):
                yield cls, name, member, list(signature.parameters.values())


# What takes something, or is called for every item: nothing is around these, and Python answers.
CALLED_DIRECTLY = {
    *(f"AsyncHandle.{name}" for name in ("wait", "result")),
    *(f"Channel.{name}" for name in ("put", "put_nowait", "get", "get_nowait", "get_batch", "get_group")),
    *(f"Channel.{name}" for name in ("drain", "ask")),
    "Shard.next_batch",
    *(f"Worker.{name}" for name in ("send", "recv", "send_tensor", "recv_tensor", "broadcast")),
    "Worker.fetch_weights",
}


def test_every_public_method_answers_a_keyword_that_it_does_not_know():
    by_python, explained = set(), set()
    for cls, name, member, parameters in public_methods():
        with case(f"{cls.__name__}.{name}"):
            inert = object.__new__(
                type(cls.__name__, (cls,), {"__del__": lambda self: None, "__slots__": ()})
            )
            method = member.__get__(inert, type(inert))
            given = 0 if isinstance(member, staticmethod) else 1
            needed = [
                None for p in parameters[given:] if p.default is p.empty and p.kind is not p.VAR_POSITIONAL
            ]
            with pytest.raises(TypeError) as caught:
                method(*needed, timeot_s=1)
            told = str(caught.value)
            if type(caught.value) is TypeError:
                # A subscription is read by a channel's methods.
                known_as = f"{'Channel' if cls is Subscription else cls.__name__}.{name}"
                assert told.startswith(f"{known_as}() got an unexpected keyword argument 'timeot_s'")
                by_python.add(known_as)
                continue
            assert isinstance(caught.value, CallArgumentError)
            assert told.startswith(f"{cls.__name__}.{name}(): got an unexpected keyword argument 'timeot_s'")
            if "timeout_s" in {p.name for p in parameters}:
                assert "; did you mean 'timeout_s'?" in told
                explained.add(f"{cls.__name__}.{name}")
    assert by_python == CALLED_DIRECTLY
    assert explained >= {"GroupResult.wait"}


@pytest.mark.parametrize("function", [wait_all, wait_first, as_completed])
def test_functions_that_wait_for_several_results_know_their_keywords_too(function):
    with pytest.raises(CallArgumentError, match=rf"{function.__name__}\(\): .*; did you mean 'timeout_s'"):
        function([], timeout=3)


def test_an_argument_that_put_or_get_lacks_is_named_with_the_class_that_users_know():
    with pytest.raises(
        TypeError, match=r"Channel\.get_group\(\) missing 1 required positional argument: 'size'"
    ):
        Channel.get_group(None)


@pytest.mark.parametrize("name", sorted(CALLED_DIRECTLY))
def test_what_is_called_for_every_item_takes_no_keywords_but_its_own_and_has_nothing_around_it(name):
    cls, _, method = name.partition(".")
    function = getattr(next(each for each in PUBLIC if each.__name__ == cls), method)
    assert inspect.getfullargspec(function).varkw is None
    assert not hasattr(function, "__wrapped__")
