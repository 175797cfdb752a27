import zlib

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codec_cases import bits
from effort import tries
from rlinf_scheduler.comm import decode, encode
from rlinf_scheduler.comm.codec.arrays import check_extent, strided_array
from rlinf_scheduler.errors import CodecError

base = torch.arange(1000.0)
SENT = {
    "plain": torch.arange(100, dtype=torch.int16),
    "strided": base[:100].view(10, 10).t(),
    "base": base,
    "array": np.arange(1000)[::2],
    "eight": torch.zeros(50).to(torch.float8_e5m2),
}
ENCODED = encode(SENT)
HEAD = bytes(ENCODED.head)
BUFFERS = [bytes(frame) for frame in ENCODED.frames()[1:]]
TABLE_END = 9 + int.from_bytes(HEAD[5:9], "little")
many = settings(max_examples=tries(300), deadline=None, suppress_health_check=list(HealthCheck))
numbers = (
    st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 5000) | st.sampled_from([2**31, 2**62, 2**63 - 8])
)


def read_through(head, buffers):
    """Either an object, all of whose elements can be read, or a CodecError."""
    try:
        received = decode(head, [bytearray(buffer) for buffer in buffers])
    except CodecError:
        return
    for each in received.values():
        if isinstance(each, torch.Tensor):
            # An expanded tensor may be of any size, legally; not every dtype can be negated.
            if each.numel() < 100_000:
                bits(torch._neg_view(each.detach()) if each.is_neg() else each)
        else:
            bytes(each)


def with_table(table):
    """A head that a sender could have written, with this table."""
    body = table + HEAD[TABLE_END:]
    return HEAD[:1] + zlib.crc32(body).to_bytes(4, "little") + len(table).to_bytes(4, "little") + body


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\0",
        b"\0garbage",
        b"\3\0\0\0\0garbage",
        b"\3\5\0\0\0abcde",
        b"\1",
        b"\2",
        b"\4\0\0\0\0\0\0\0\0",
        b"\x09abcd",
    ],
)
def test_bytes_that_are_no_object_are_a_codec_error(head):
    with pytest.raises(CodecError, match="cannot be decoded"):
        decode(head, [])


def test_the_uncorrupted_bytes_can_be_read():
    assert torch.equal(decode(HEAD, BUFFERS)["base"], base)


@many
@given(st.data())
def test_a_table_that_reaches_beyond_its_buffers_is_a_codec_error(data):
    order, rows = msgspec.msgpack.decode(HEAD[9:TABLE_END])
    row = data.draw(st.sampled_from(rows))
    what = data.draw(
        st.sampled_from(["shape", "strides", "offset", "part", "dtype", "flags", "order", "device"])
    )
    if what == "shape":
        row[1] = data.draw(st.lists(numbers, max_size=3))
    if what == "strides":
        row[1] = data.draw(st.lists(numbers, min_size=1, max_size=3))
        row[4] = data.draw(st.lists(numbers, min_size=1, max_size=3))
    if what == "offset":
        row[3] = data.draw(numbers)
    if what == "part":
        row[2] = data.draw(numbers)
    if what == "dtype":
        row[0] = data.draw(st.sampled_from(["float64", "complex128", "bool", "int4", "qint8", "load", ""]))
    if what == "flags":
        row[5] = data.draw(st.integers(0, 15))
    if what == "device":
        row[6] = data.draw(st.sampled_from(["cuda", "npu", "meta", "nowhere", ""]))
    if what == "order":
        order[data.draw(st.integers(0, len(order) - 1))] = data.draw(numbers)
    read_through(with_table(msgspec.msgpack.encode((order, rows))), BUFFERS)


@many
@given(st.integers(9, TABLE_END - 1), st.integers(0, 255))
def test_a_wrong_byte_in_the_table_crashes_nothing(position, value):
    read_through(with_table(HEAD[9:position] + bytes([value]) + HEAD[position + 1 : TABLE_END]), BUFFERS)


@many
@given(st.integers(0, len(HEAD) - 1), st.integers(1, 255))
def test_a_wrong_byte_in_the_head_is_a_codec_error(position, change):
    wrong = bytearray(HEAD)
    wrong[position] ^= change
    if wrong[0] in (1, 2, 5):  # bytes as they are: the first buffer, or what follows
        return
    with pytest.raises(CodecError, match="cannot be decoded"):
        decode(wrong, BUFFERS)


@settings(max_examples=tries(70), deadline=None)
@given(st.integers(0, len(HEAD) - 1))
def test_a_head_that_was_cut_off_is_a_codec_error(length):
    with pytest.raises(CodecError, match="cannot be decoded"):
        decode(HEAD[:length], BUFFERS)


@pytest.mark.parametrize("index", range(len(BUFFERS)))
def test_buffers_that_were_cut_off_or_lost_are_a_codec_error(index):
    for cut in (BUFFERS[index][:-1], b""):
        with pytest.raises(CodecError, match="cannot be decoded"):
            decode(HEAD, [*BUFFERS[:index], cut, *BUFFERS[index + 1 :]])
    with pytest.raises(CodecError, match="cannot be decoded"):
        decode(HEAD, BUFFERS[:index])


@many
@given(st.lists(numbers, max_size=3).map(tuple), st.lists(numbers, max_size=3).map(tuple))
def test_an_array_never_reaches_beyond_its_memory(shape, strides):
    memory = bytearray(1000)
    try:
        array = strided_array(shape, "f4", memory, strides)
    except (CodecError, ValueError):  # numpy itself sees that a size is none at all
        return
    low, high = np.lib.array_utils.byte_bounds(array) if array.size else (0, 0)
    assert high - low <= len(memory)
    if array.size < 1000:
        array.tobytes()


@pytest.mark.parametrize(
    ("shape", "strides"), [((5,), (2**62,)), ((3, 3), (-4, 4)), ((2, 2), (4,)), ((2**62, 2), (8, 4))]
)
def test_numbers_that_overflow_are_seen(shape, strides):
    with pytest.raises(CodecError, match="does not lie within 40 bytes"):
        check_extent(shape, strides, 4, 0, 40)
