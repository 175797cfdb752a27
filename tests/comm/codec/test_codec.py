import json
import re
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from codec_cases import (
    WAYS,
    Frozen,
    Open,
    Point,
    arrays,
    assert_same,
    inline,
    objects,
    placed,
    plain,
    tensors,
)
from effort import tries
from programs import run_program
from rlinf_scheduler.comm import decode, encode
from rlinf_scheduler.errors import ChannelTimeout, CodecError

many = settings(max_examples=tries(130), deadline=None, suppress_health_check=list(HealthCheck))


@many
@given(plain)
def test_plain_objects_survive(obj):
    assert_same(inline(obj), obj)


@many
@given(tensors())
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_tensors_of_every_dtype_shape_and_stride_survive(tensor):
    assert_same(inline(tensor), tensor)
    assert_same(placed(tensor), tensor)


@many
@given(arrays())
def test_arrays_of_every_dtype_shape_and_order_survive(array):
    assert_same(inline(array), array)
    assert_same(placed(array), array)


@many
@given(objects)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_whatever_is_built_of_them_survives(obj):
    assert_same(inline(obj), obj)
    assert_same(placed(obj), obj)


@pytest.mark.parametrize("through", WAYS)
def test_dataclasses_and_named_tuples_survive(through):
    step = Frozen(np.arange(100.0), torch.arange(5))
    received = through(Point(step, {"again": step, "open": Open(1.5, [step])}))
    assert type(received) is Point
    assert_same(received.x, step)
    assert received.y["again"] is received.x
    assert received.y["open"].right[0] is received.x


@pytest.mark.parametrize("through", WAYS)
@pytest.mark.parametrize("size", [0, 100, 10_000])
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_bytes_keep_their_kind(kind, size, through):
    received = through(kind(size))
    assert type(received) is kind
    assert received == bytes(size)


@pytest.mark.parametrize("through", WAYS)
@pytest.mark.parametrize(
    "large",
    [b"x" * 200_000, bytearray(b"x" * 200_000), "x" * 200_000, "ä€😀\ud800" * 50_000],
    ids=["bytes", "bytearray", "ascii", "text"],
)
def test_large_strings_within_others_survive(large, through):
    sent = {"large": large, "tensor": torch.arange(1000), "nested": [Frozen(large, np.arange(1000)), large]}
    received = through(sent)
    assert_same(received, sent)
    assert received["nested"][1] is received["large"]


def test_large_strings_do_not_lie_in_the_head():
    encoded = encode([1, b"x" * 1_000_000, {"text": "y" * 1_000_000}])
    assert len(encoded.head) < 1000
    assert len(encoded.sizes) == 2
    assert encoded.size_bytes == sum(encoded.sizes) > 2_000_000


def test_lambdas_and_local_classes_travel_by_value():
    class Local:
        def __init__(self):
            self.values = np.arange(1000)
            self.tensor = torch.arange(1000)

    assert inline(lambda x: x + 1)(2) == 3
    received = placed(Local())
    assert_same(received.values, np.arange(1000))
    assert_same(received.tensor, torch.arange(1000))


SENDS_BACK = """
import json, sys
from rlinf_scheduler.comm import decode, encode

head, *buffers = [bytes.fromhex(frame) for frame in json.load(sys.stdin)]
received = decode(head, buffers)
for name, each in received.items():
    assert name == "kind" or not hasattr(each, "__dict__") or "__dict__" in type(each).__slots__, each
print(json.dumps([bytes(frame).hex() for frame in encode(received).snapshot()]))
"""


def there_and_back(obj):
    """What another process has made of an object, and this one of what that has sent."""
    frames = [bytes(frame).hex() for frame in encode(obj).snapshot()]
    done = run_program("-c", SENDS_BACK, input=json.dumps(frames))
    assert done.returncode == 0, done.stderr
    head, *buffers = [bytes.fromhex(frame) for frame in json.loads(done.stdout)]
    return decode(head, buffers)


def objects_with_slots():
    class Plain:
        __slots__ = ("a", "b")

    class Derived(Plain):
        __slots__ = "c"

    class Private:
        __slots__ = ("__hidden", "_seen")

        def __init__(self):
            self.__hidden, self._seen = 1, 2

        def values(self):
            return self.__hidden, self._seen

    class Documented:
        __slots__ = {"__dict__": "the others", "__weakref__": "by cells", "a": "what it is"}

    @dataclass(slots=True)
    class Record:
        number: int
        values: list = field(default_factory=list)

    @dataclass(slots=True, frozen=True, weakref_slot=True)
    class FrozenRecord:
        number: int

    class Kind(Enum):
        __slots__ = ()
        ONE = 1

    class Pair(tuple):
        __slots__ = ()

    plain, derived, documented = Plain(), Derived(), Documented()
    plain.a, plain.b = np.arange(3), None
    derived.a, derived.c = 1, "c"
    documented.a, documented.other = 1, 2
    return {
        "plain": plain,
        "derived": derived,
        "private": Private(),
        "documented": documented,
        "record": Record(1, [torch.arange(2)]),
        "frozen": FrozenRecord(2),
        "kind": Kind.ONE,
        "pair": Pair((1, 2)),
    }


def test_objects_of_the_programs_own_classes_with_slots_come_back():
    sent = objects_with_slots()
    received = there_and_back(sent)
    assert {name: type(each) for name, each in received.items()} == {
        name: type(each) for name, each in sent.items()
    }
    assert (received["plain"].a.tolist(), received["plain"].b) == ([0, 1, 2], None)
    derived, documented = received["derived"], received["documented"]
    assert (derived.a, hasattr(derived, "b"), derived.c) == (1, False, "c")
    assert received["private"].values() == (1, 2)
    assert (documented.a, documented.other) == (1, 2)
    assert received["record"].values[0].tolist() == [0, 1]
    assert (received["frozen"], received["pair"]) == (sent["frozen"], (1, 2))
    assert received["kind"] is sent["kind"]
    with pytest.raises(AttributeError):
        received["plain"].other = 1


def test_errors_survive_with_their_fields():
    received = inline(ChannelTimeout("replay", "default", "get", 1.5))
    assert isinstance(received, ChannelTimeout)
    assert received.waited_s == 1.5


class Stubborn:
    def __reduce__(self):
        message = "not me"
        raise KeyError(message)


@pytest.mark.parametrize(
    ("obj", "name"), [(threading.Lock(), "_thread.lock"), (Stubborn(), f"{__name__}.Stubborn")]
)
def test_what_cannot_be_sent_is_named(obj, name):
    with pytest.raises(CodecError, match=re.escape(f"{name} cannot be sent")):
        encode(obj)


def test_a_class_of_the_users_script_arrives_where_the_script_is_another(tmp_path):
    script = tmp_path / "users_script.py"
    script.write_text(
        textwrap.dedent("""
        import dataclasses, pickle, sys
        from rlinf_scheduler.comm import encode

        @dataclasses.dataclass
        class Sample:
            value: int

        sys.stdout.buffer.write(pickle.dumps([bytes(frame) for frame in encode([Sample(7)]).frames()]))
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, check=True, timeout=60)
    code = "import pickle, sys; from rlinf_scheduler.comm import decode; "
    code += "head, *rest = pickle.load(sys.stdin.buffer); print(decode(head, rest)[0].value)"
    read = subprocess.run(
        [sys.executable, "-c", code], input=done.stdout, capture_output=True, check=True, timeout=60
    )
    assert read.stdout.strip() == b"7"


def test_torch_is_not_loaded_for_objects_without_tensors():
    code = "import sys, numpy; from rlinf_scheduler.comm import *; e = encode([1, numpy.zeros(1000)]); "
    code += "decode(e.head, e.buffers); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert done.stdout.strip() == b"False"
