"""What the tests of the codec share: two ways to the receiver, and objects of every kind."""

import dataclasses
from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import torch
from hypothesis import strategies as st

from rlinf_scheduler.comm import decode, encode

Point = namedtuple("Point", "x y")
QUANTISED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
TENSOR_DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)} - QUANTISED, key=str
)
ARRAY_DTYPES = [
    *["?", "u1", "i2", ">i2", "<u4", "i8", "f2", "f4", ">f8", "g", "F", ">c16", "G"],
    *["U3", ">U2", "S5", "V7", "M8[ns]", ">M8[D]", "m8[25s]", "O"],
    np.dtype([("a", "i4"), ("b", "f8", (2,))]),
    np.dtype([("a", "u1"), ("b", "f8")], align=True),
    np.dtype([("when", "M8[s]"), ("what", "O")]),
    *([np.dtypes.StringDType()] if hasattr(np.dtypes, "StringDType") else []),
]


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    left: object
    right: object


@dataclasses.dataclass
class Open:
    left: object
    right: object


def inline(obj):
    """Over a socket: frames arrive in writable memory of their own."""
    head, *buffers = encode(obj).frames()
    return decode(head, [bytearray(buffer) for buffer in buffers])


def placed(obj):
    """Through shared memory: everything is written into one block, and the receiver gets slices of it."""
    encoded = encode(obj)
    offsets, end = [], 64
    for size in encoded.sizes:
        offsets.append(end)
        end += -(-size // 64) * 64
    block = np.full(end, 0xA5, np.uint8)
    encoded.write_into(block, offsets)
    head, *buffers = [block[begin : begin + size] for begin, size in zip(offsets, encoded.sizes, strict=True)]
    return decode(head, buffers)


WAYS = [inline, placed]


def bits(tensor):
    """The bytes of its elements, in the order of its axes, wherever it lies."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
    return tensor.view(integers[tensor.element_size()]).numpy().tobytes()


def assert_same_tensor(received, sent):
    assert type(received) is type(sent)
    assert (received.dtype, received.shape) == (sent.dtype, sent.shape)
    assert received.requires_grad == sent.requires_grad
    assert bits(received) == bits(sent)


def assert_same_array(received, sent):
    assert type(received) is type(sent)
    assert received.shape == sent.shape
    assert received.dtype == sent.dtype
    assert received.flags.writeable
    assert np.array_equal(received, sent)


def assert_same(received, sent):
    assert type(received) is type(sent)
    if isinstance(sent, torch.Tensor):
        assert_same_tensor(received, sent)
    elif isinstance(sent, np.ndarray):
        assert_same_array(received, sent)
    elif isinstance(sent, dict):
        assert list(received) == list(sent)
        for key, value in sent.items():
            assert_same(received[key], value)
    elif isinstance(sent, list | tuple):
        for one, other in zip(received, sent, strict=True):
            assert_same(one, other)
    elif isinstance(sent, Frozen | Open):
        assert_same(received.left, sent.left)
        assert_same(received.right, sent.right)
    else:
        assert received == sent


shapes = st.lists(st.integers(0, 5), max_size=4)
# Bytes that are the same whatever they mean: every element of every dtype is valid.
patterns = st.integers(0, 250)


@st.composite
def tensors(draw):
    shape, dtype, step = draw(shapes), draw(st.sampled_from(TENSOR_DTYPES)), draw(st.integers(1, 3))
    wide = [size * step for size in shape]
    size = dtype.itemsize
    count = int(np.prod(wide, dtype=int))
    memory = np.arange(count * size, dtype=np.uint8) % (draw(patterns) + 1)
    if dtype is torch.bool:
        memory %= 2
    base = torch.from_numpy(memory).view(dtype) if count else torch.empty(0, dtype=dtype)
    view = base.view(wide)[tuple(slice(None, None, step) for _ in shape)]
    view = view.permute(draw(st.permutations(range(len(shape)))))
    if draw(st.integers(0, 5)) == 0:
        view = view.unsqueeze(0).expand(3, *view.shape)
    if dtype.is_complex and dtype is not torch.complex32 and draw(st.booleans()):
        view = view.conj()
    if dtype.is_floating_point and dtype.itemsize > 2 and draw(st.booleans()):
        view = view.requires_grad_()
    return view


@st.composite
def arrays(draw):
    shape, dtype, step = draw(shapes), np.dtype(draw(st.sampled_from(ARRAY_DTYPES))), draw(st.integers(1, 3))
    wide = [size * step for size in shape]
    count = int(np.prod(wide, dtype=int))
    array = np.arange(count).astype("u1").astype(dtype if dtype.names is None else "u1").reshape(wide)
    if dtype.names is not None:
        plain, array = array, np.zeros(wide, dtype)
        for name in dtype.names:
            column = plain.astype(dtype[name].base)
            array[name] = column[..., None] if dtype[name].shape else column
    array = np.asarray(array, order=draw(st.sampled_from("CF")))
    back = draw(st.sampled_from([1, -1]))
    view = array[(..., *(slice(None, None, back * step) for _ in shape))]
    view = view.transpose(draw(st.permutations(range(len(shape)))))
    view.flags.writeable = draw(st.booleans())
    return view


plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=3000)
    | st.binary(max_size=100).map(bytearray)
    | st.sets(st.integers())
)


def containers(inner):
    return (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4).map(OrderedDict)
        | st.dictionaries(st.integers(), inner, max_size=4).map(lambda each: defaultdict(list, each))
        | st.tuples(inner, inner)
        | st.builds(Point, inner, inner)
        | st.builds(Frozen, inner, inner)
        | st.builds(Open, inner, inner)
        # The same thing twice, and a large one, which takes a pickle beyond the size of a head.
        | inner.map(lambda each: [each, each])
        | inner.map(lambda each: [each, bytes(70_000)])
    )


objects = st.recursive(tensors() | arrays() | plain, containers, max_leaves=12)
