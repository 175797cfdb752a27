"""What a group lets one call, and how: views, scattered arguments, attributes, and mistakes that are found at once."""

import os
import threading
from itertools import count

import pytest

import slow_errors
from alarms import interrupted_at
from local_group import DEADLINE_S
from nested_tensors import LAYOUTS, nested, parts_of
from rlinf_scheduler import Worker
from rlinf_scheduler.comm import Messenger
from rlinf_scheduler.comm.directory import GROUPS
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.errors import (
    CallArgumentError,
    CodecError,
    ConfigError,
    GroupExists,
    PlacementError,
    WorkerError,
)
from rlinf_scheduler.host.calls import Answers
from rlinf_scheduler.worker import home
from rlinf_scheduler.worker.call import Call
from rlinf_scheduler.worker.home import Claim
from rlinf_scheduler.worker.signatures import check_arguments, declared_attributes
from slow_errors import SlowError
from waits import wait_until


class Base(Worker):
    def act(self, observation, *, temperature=1.0):
        return (self.rank, observation, temperature)


class Policy(Base):
    kind = "policy"

    def __init__(self, hidden_size=4, layers=2):
        super().__init__()
        self.hidden_size = hidden_size
        self.calls = 0
        self._secret = 1

    def train(self, batch, epochs=1):
        self.calls += 1
        return (self.rank, batch, epochs)

    @property
    def double(self):
        return 2 * self.hidden_size + self.rank

    @property
    def broken(self):
        raise LookupError("no value yet")

    @staticmethod
    def helper(value):
        return value

    @classmethod
    def named(cls, value):
        return cls.__name__, value

    def anything(self, *args, **kwargs):
        return args, kwargs

    def _private(self):
        return "private"


@pytest.fixture
def group(job):
    return job.launch(Policy, 4)


def wait(result):
    return result.wait(DEADLINE_S)


def test_a_slice_or_an_index_is_a_view(group):
    assert [rank for rank, _, _ in wait(group[1:3].train("b"))] == [1, 2]
    assert wait(group[-1].train("b")) == [(3, "b", 1)]
    assert wait(group[::2].get("hidden_size")) == [4, 4]
    assert group.ranks == (0, 1, 2, 3)
    for wrong in (4, -5):
        with pytest.raises(PlacementError, match="ranks 0 to 3"):
            group[wrong]
    with pytest.raises(PlacementError, match="at least one"):
        group[4:]


def test_each_rank_gets_arguments_of_its_own(group):
    assert wait(group.scatter(["a", "b", "c", "d"]).train(epochs=2)) == [
        (0, "a", 2),
        (1, "b", 2),
        (2, "c", 2),
        (3, "d", 2),
    ]
    assert wait(group[2:].scatter(["x", "y"], temperature=[0.1, 0.2]).act()) == [
        (2, "x", 0.1),
        (3, "y", 0.2),
    ]
    with pytest.raises(CallArgumentError, match="argument 0 has 3 values for 4 ranks"):
        group.scatter([1, 2, 3])
    with pytest.raises(CallArgumentError, match="missing a required argument"):
        group.scatter(epochs=[1, 2, 3, 4]).train()


def test_large_scattered_arguments_arrive_each_at_its_rank(group):
    parts = [bytes([rank]) * 300_000 for rank in range(4)]
    assert [batch for _, batch, _ in wait(group.scatter(parts).train())] == parts


def test_attributes_and_properties_can_be_read(group):
    assert wait(group.get("double")) == [8, 9, 10, 11]
    assert wait(group.get("kind")) == ["policy"] * 4
    with pytest.raises(WorkerError, match="no value yet"):
        wait(group.get("broken"))
    with pytest.raises(
        AttributeError, match="Policy has no attribute 'hidden_sice'; did you mean 'hidden_size'"
    ):
        group.get("hidden_sice")
    with pytest.raises(AttributeError, match=r"group.train\(...\) calls it"):
        group.get("train")
    with pytest.raises(AttributeError, match="private"):
        group.get("_secret")


def test_a_remote_traceback_begins_with_the_users_code(group):
    with pytest.raises(WorkerError) as caught:
        wait(group.get("broken"))
    lines = str(caught.value).splitlines()
    first = lines[lines.index(next(line for line in lines if "Traceback" in line)) + 1]
    assert f'File "{__file__}"' in first
    assert first.endswith("in broken")
    assert "/rlinf_scheduler/host/" not in str(caught.value)


class Open(Worker):
    def __init__(self):
        super().__init__()
        setattr(self, "lay" + "er_1", 1)


def test_attributes_that_only_the_rank_knows_are_asked_for_there(job):
    group = job.launch(Open, 1)
    assert wait(group.get("layer_1")) == [1]
    with pytest.raises(WorkerError, match="Open has no attribute 'layer_2'; did you mean 'layer_1'"):
        wait(group.get("layer_2"))


def test_a_class_that_only_names_its_attributes_has_those_that_its_source_says():
    class Mixed(Policy):
        limit: int

        def __init__(self):
            super().__init__()
            self.first, (self.second, self._hidden) = 1, (2, 3)
            with open(os.devnull) as self.file:
                self.count = 0

        async def later(self):
            self.count += 1
            for self.step in range(3):
                self.act(None)

        def share(self):
            Mixed.newest = self.first

        @classmethod
        def prepare(cls):
            cls.ready = True

    declared = declared_attributes(Mixed)
    assert {"newest", "ready"} <= declared
    assert {"limit", "first", "second", "file", "count", "step", "hidden_size", "double", "rank"} <= declared
    assert "third" not in declared


class Dictionary(Policy):
    def fill(self):
        self.__dict__.update(size=1)


class Handed(Policy):
    def fill(self):
        register(self)


class Asked(Policy):
    def __getattr__(self, name):
        return name


class Named(Policy):
    def fill(self):
        self.__setattr__("size", 1)


class OfItsClass(Policy):
    def fill(self):
        setattr(OfItsClass, "si" + "ze", 1)


class Chosen(Policy):
    if Policy.kind == "policy":

        def fill(self):
            self.size = 1


def register(worker):
    worker.size = 1


def counted(method):
    def run(self, *args):
        self.num_calls = 1
        return method(self, *args)

    return run


def has_a_size(cls):
    cls.__init__ = counted(cls.__init__)
    return cls


class Wrapped(Policy):
    @counted
    def act(self, obs):
        return obs


class Assigned(Policy):
    fill = register


@has_a_size
class Dressed(Policy):
    pass


@pytest.mark.parametrize(
    "worker_class",
    [
        *(Open, Dictionary, Handed, Asked, Named, OfItsClass, Chosen, Wrapped, Assigned, Dressed),
        type("Made", (Policy,), {}),
    ],
)
def test_a_class_that_may_have_others_does_not_say_which(worker_class):
    assert declared_attributes(worker_class) is None


def test_a_wrong_name_says_what_was_meant(group):
    with pytest.raises(AttributeError, match="Policy has no method 'trian'; did you mean 'train'"):
        group.trian  # noqa: B018 - it raises
    with pytest.raises(AttributeError, match=r"Policy.double is no method; group.get\('double'\) reads it"):
        group.double  # noqa: B018 - it raises
    with pytest.raises(AttributeError, match="private"):
        group._private  # noqa: B018 - it raises
    assert "act" in dir(group)
    assert "_private" not in dir(group)


def test_a_private_method_is_refused_by_the_rank_too(group):
    shared = group._begin("_private", [group._encoded("_private", (), {})], "call")
    with pytest.raises(WorkerError, match="'_private' is private to Policy"):
        wait(shared)


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        ((), {}, "missing a required argument: 'batch'"),
        (("b", 1, 2), {}, "too many positional arguments"),
        (("b",), {"epoch": 2}, "unexpected keyword argument 'epoch'; did you mean 'epochs'"),
    ],
)
def test_wrong_arguments_are_found_before_anything_is_sent(group, args, kwargs, problem):
    with pytest.raises(CallArgumentError, match=problem) as caught:
        group.train(*args, **kwargs)
    assert isinstance(caught.value, TypeError)
    assert "(batch, epochs=1)" in str(caught.value)
    assert wait(group.get("calls")) == [0] * 4


def test_wrong_arguments_of_a_constructor_are_found_before_anything_is_started():
    with pytest.raises(CallArgumentError, match="'hidden_sise'; did you mean 'hidden_size'"):
        Policy.create_group(hidden_sise=3)
    with pytest.raises(CallArgumentError, match=r"Base\(\): too many positional arguments"):
        Base.create_group(1)
    Policy.create_group(8, layers=1)


def test_what_cannot_be_sent_is_named_by_its_argument(group, forked_job):
    lock = threading.Lock()
    refused = "_thread.lock cannot be sent: cannot pickle '_thread.lock' object"
    for call, told in (
        (lambda: group.train("b", epochs=lock), f"calc.train(): argument 'epochs': {refused}"),
        (lambda: group.train(lock), f"calc.train(): argument 'batch': {refused}"),
        (lambda: group.anything(1, lock), f"calc.anything(): argument 'args[1]': {refused}"),
        (lambda: group.anything(other=lock), f"calc.anything(): argument 'other': {refused}"),
        (lambda: group.scatter([1, 2, 3, lock]).train(), f"calc.train(): argument 'batch': {refused}"),
        (
            lambda: Policy.create_group(4, layers=lock).launch(forked_job),
            f"Policy(): argument 'layers': {refused}",
        ),
    ):
        with pytest.raises(CodecError) as caught:
            call()
        assert str(caught.value) == told


def test_methods_of_every_kind_can_be_called(group):
    assert wait(group.helper(1)) == [1] * 4
    assert wait(group.named(2)) == [("Policy", 2)] * 4
    assert wait(group.anything(1, 2, a=3)) == [((1, 2), {"a": 3})] * 4
    check_arguments(Policy, "helper", (1,), {})
    with pytest.raises(CallArgumentError):
        check_arguments(Policy, "named", (), {})


def test_a_method_can_be_called_as_itself(group):
    assert wait(group.call(Policy.train, "b", epochs=3))[0] == (0, "b", 3)
    assert wait(group[0].call(Base.act, "o")) == [(0, "o", 1.0)]


def test_a_group_of_a_worker_is_called_after_it(job):
    outer = [job.make_session(f"outer:{rank}") for rank in range(2)]
    assert [Claim(session, {}).take("inner", "Inner") for session in outer] == [
        "outer:0/inner",
        "outer:1/inner",
    ]
    assert [Claim(job.session, {}).take(None, "Inner") for _ in range(2)] == ["Inner", "Inner-2"]
    with pytest.raises(GroupExists):
        Claim(outer[0], {}).take("inner", "Inner")
    for wrong in ("a/b", "a:0", ""):
        with pytest.raises(ConfigError, match="colon or a slash"):
            Claim(job.session, {}).take(wrong, "Inner")


def test_a_launch_that_is_interrupted_before_it_has_begun_leaves_its_name_free(job, monkeypatch):
    """At each instruction of the home's until then."""
    monkeypatch.setattr(home, "_INTERRUPTED_S", 0.05)
    launched = []

    def work():
        home.launch_by_name(job.session, launched.append, "inner", "Inner", {})

    for number in count():
        interrupted_at(number, work, [home.__file__])
        if launched:
            break
        wait_until(lambda: not job.session.directory.list(GROUPS))
        claim = Claim(job.session, {})
        assert claim.take("inner", "Inner") == "inner"
        claim.let_go()
    assert number > 100


class Raises(Worker):
    def fail(self):
        raise SlowError("so")


def test_the_class_of_what_a_method_raised_is_read_by_who_takes_the_result(job):
    slow_errors.readings.clear()
    result = job.launch(Raises, 2, name="raises").fail()
    with pytest.raises(WorkerError, match="SlowError: so") as caught:
        result.wait(DEADLINE_S)
    assert type(caught.value.cause) is SlowError
    assert len(result.results(return_exceptions=True)) == 2
    assert slow_errors.readings
    assert not any(slow_errors.readings)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nested_tensors_are_arguments_and_results(group, layout):
    sent = nested(layout)
    for _, received, _ in wait(group.train(sent)):
        assert parts_of(received) == parts_of(sent)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("part", [(Call, "start"), (Payload, "frames_for"), (Messenger, "request")])
def test_a_call_that_cannot_be_sent_fails_at_once(group, monkeypatch, part):
    def fails(*_args, **_options):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(*part, fails)
        with pytest.raises(MemoryError):
            group.train("b").wait()
    assert len(wait(group.train("b"))) == 4


@pytest.mark.timeout(60)
def test_a_result_that_cannot_be_sent_fails_its_call_at_once(group, monkeypatch):
    large = "x" * (1 << 20)  # it would lie in shared memory
    with monkeypatch.context() as patch:
        patch.setattr(Answers, "_lend", lambda *_: bytes(1 << 62))
        with pytest.raises(MemoryError):
            group[0].train(large).wait()
    assert len(wait(group.train("b"))) == 4
