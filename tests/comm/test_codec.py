import dataclasses
import pickle
import subprocess
import sys
import textwrap
import threading
from collections import namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.scheduler.comm import decode, encode
from rlinf.scheduler.errors import ChannelTimeout, CodecError

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.complex128,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.int64,
]

Point = namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    reward: float
    observation: np.ndarray
    action: torch.Tensor


def through(obj):
    """What a receiver gets: the buffers arrive in writable memory of their own."""
    encoded = encode(obj)
    return decode(bytearray(encoded.head), [bytearray(buffer) for buffer in encoded.buffers])


def raw(tensor):
    if tensor.numel() == 0:
        return torch.empty(0, dtype=torch.uint8)
    return tensor.detach().clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def assert_same_tensor(received, sent):
    assert received.dtype == sent.dtype
    assert received.shape == sent.shape
    assert received.requires_grad == sent.requires_grad
    assert torch.equal(raw(received), raw(sent))


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=5000),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4) | st.tuples(inner, inner)
    ),
    max_leaves=20,
)
shapes = st.lists(st.integers(0, 5), max_size=4)


@st.composite
def tensors(draw):
    shape = draw(shapes)
    dtype = draw(st.sampled_from(DTYPES))
    base = torch.randint(0, 2, [size * 2 for size in shape]).to(dtype)
    step = draw(st.integers(1, 2))
    view = base[tuple(slice(0, size * step, step) for size in shape)]
    return view.permute(draw(st.permutations(range(len(shape)))))


@st.composite
def arrays(draw):
    shape = draw(shapes)
    dtype = draw(st.sampled_from(["f4", "i8", "u1", "c8", "?", ">i2", "U3", "S2", "M8[s]", "O"]))
    order = draw(st.sampled_from("CF"))
    array = np.zeros([size * 2 for size in shape], dtype=dtype, order=order)
    return array[(..., *(slice(0, size * 2, 2) for size in shape))]


@settings(deadline=None)
@given(plain)
def test_plain_objects_survive(obj):
    assert through(obj) == obj


@settings(deadline=None)
@given(tensors())
def test_tensors_of_every_dtype_shape_and_stride_survive(tensor):
    assert_same_tensor(through(tensor), tensor)


@settings(deadline=None)
@given(arrays())
def test_arrays_of_every_dtype_shape_and_order_survive(array):
    received = through(array)
    assert received.dtype == array.dtype
    assert received.shape == array.shape
    assert np.array_equal(received, array)
    assert received.flags.writeable


@settings(max_examples=50, deadline=None)
@given(st.lists(tensors() | arrays() | plain, max_size=6))
def test_mixtures_survive(items):
    for received, sent in zip(through(items), items, strict=True):
        if isinstance(sent, torch.Tensor):
            assert_same_tensor(received, sent)
        else:
            assert np.array_equal(received, sent) if isinstance(sent, np.ndarray) else received == sent


@pytest.mark.parametrize("array", [np.arange(3.0), np.arange(1000.0)], ids=["small", "large"])
def test_received_arrays_are_writable_even_if_the_sent_one_is_not(array):
    array.flags.writeable = False
    received = through(array)
    received[0] = 7
    assert received[0] == 7


def test_large_arrays_and_tensors_are_not_copied():
    array, tensor = np.zeros(100_000), torch.zeros(100_000)
    encoded = encode({"array": array, "tensor": tensor})
    assert len(encoded.head) < 1000
    array[0] = tensor[0] = 1.0
    firsts = {bytes(memoryview(buffer)[:8]) for buffer in encoded.buffers}
    assert firsts == {np.float64(1).tobytes(), np.float32(1).tobytes() + bytes(4)}


def test_a_detached_encoding_is_a_snapshot():
    array = np.zeros(1000)
    encoded = encode(array).detached()
    array[:] = 1
    assert not decode(encoded.head, [bytearray(buffer) for buffer in encoded.buffers]).any()


def test_a_small_view_of_a_large_tensor_sends_only_itself():
    assert encode(torch.zeros(1_000_000)[10:20]).size_bytes < 1000
    assert encode(torch.zeros(1000, 1000)[:, 3]).size_bytes < 10_000


def test_views_of_one_storage_travel_once_and_still_share():
    base = torch.arange(1000.0)
    sent = {"half": base[:500], "all": base, "square": base[:100].view(10, 10).t()}
    assert encode(sent).size_bytes < 5000
    received = through(sent)
    assert all(torch.equal(received[name], sent[name]) for name in sent)
    received["all"][1] = -1
    assert received["half"][1] == -1
    assert received["square"][1, 0] == -1


def test_an_expanded_tensor_sends_one_row():
    sent = torch.arange(1000.0).expand(1000, 1000)
    assert encode(sent).size_bytes < 10_000
    assert torch.equal(through(sent), sent)


def test_the_same_tensor_twice_is_one_object_again():
    tensor = torch.ones(3)
    first, second = through([tensor, tensor])
    assert first is second


def test_parameters_and_gradients_keep_what_they_are():
    parameter = torch.nn.Parameter(torch.ones(3))
    received = through({"weight": parameter, "leaf": torch.ones(2, requires_grad=True)})
    assert type(received["weight"]) is torch.nn.Parameter
    assert received["weight"].requires_grad
    assert received["leaf"].requires_grad


def test_a_conjugated_view_has_its_values():
    tensor = torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert torch.equal(through(tensor), tensor.resolve_conj())


def test_sparse_tensors_survive():
    tensor = torch.eye(4).to_sparse()
    assert torch.equal(through(tensor).to_dense(), torch.eye(4))


def test_state_dicts_survive():
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    sent = module.state_dict()
    received = through(sent)
    assert list(received) == list(sent)
    assert all(torch.equal(received[name], sent[name]) for name in sent)


def test_dataclasses_and_named_tuples_survive():
    step = Step(1.5, np.arange(100.0), torch.arange(5))
    received = through(Point(step, {"again": step}))
    assert type(received) is Point
    assert received.x.reward == 1.5
    assert np.array_equal(received.x.observation, step.observation)
    assert received.y["again"] is received.x


@pytest.mark.parametrize("size", [0, 100, 10_000])
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_bytes_keep_their_kind(kind, size):
    received = through(kind(size))
    assert type(received) is kind
    assert received == bytes(size)


def test_lambdas_and_local_classes_travel_by_value():
    class Local:
        def __init__(self):
            self.values = np.arange(1000)

    assert through(lambda x: x + 1)(2) == 3
    assert np.array_equal(through(Local()).values, np.arange(1000))


def test_errors_survive_with_their_fields():
    received = through(ChannelTimeout("replay", "default", "get", 1.5))
    assert isinstance(received, ChannelTimeout)
    assert received.waited_s == 1.5


def test_what_cannot_be_sent_is_named():
    with pytest.raises(CodecError, match=r"_thread.lock cannot be sent"):
        encode(threading.Lock())


@pytest.mark.parametrize("head", [b"", b"\0", b"\0\0\0\0\0garbage", b"\0\5\0\0\0abcde", b"\1"])
def test_bytes_that_are_no_object_are_a_codec_error(head):
    with pytest.raises(CodecError, match="cannot be decoded"):
        decode(head, [])


def test_a_class_of_the_users_script_arrives_where_the_script_is_another(tmp_path):
    script = tmp_path / "users_script.py"
    script.write_text(
        textwrap.dedent("""
        import dataclasses, pickle, sys
        from rlinf.scheduler.comm import encode

        @dataclasses.dataclass
        class Sample:
            value: int

        encoded = encode([Sample(7)])
        sys.stdout.buffer.write(pickle.dumps((encoded.head, [bytes(b) for b in encoded.buffers])))
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, check=True, timeout=60)
    (received,) = decode(*pickle.loads(done.stdout))
    assert received.value == 7


def test_torch_is_not_loaded_for_objects_without_tensors():
    code = "import sys; from rlinf.scheduler.comm import *; e = encode([1]); decode(e.head, e.buffers); "
    done = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules)"],
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == b"False"
