import gc
import pickle
import threading
import tracemalloc
import weakref

import numpy as np
import pytest
import torch

from codec_cases import assert_same, inline, placed
from rlinf_scheduler.comm import decode, encode
from rlinf_scheduler.comm.codec.sources import copied
from rlinf_scheduler.comm.codec.tensor_reader import TensorReader
from rlinf_scheduler.comm.codec.tensors import TensorTable, dtypes

SIZE = 8 << 20


def offsets_of(encoded):
    return [sum(encoded.sizes[:index]) for index in range(len(encoded.sizes))]


def written(encoded):
    block = np.empty(encoded.size_bytes, np.uint8)
    encoded.write_into(block, offsets_of(encoded))
    return block


def test_sizes_are_those_of_the_frames():
    encoded = encode({"a": np.zeros((100, 100))[:, ::3], "b": torch.zeros(1000), "c": b"x" * 100_000})
    frames = encoded.frames()
    assert encoded.sizes == [memoryview(frame).nbytes for frame in frames]
    assert encoded.size_bytes == sum(encoded.sizes)
    assert written(encoded).tobytes() == b"".join(frames)
    assert encoded.buffers == frames[1:]


def test_the_head_that_is_remembered_for_arrays_alone_is_of_their_shape_and_type():
    with_unit = np.dtype("f4", metadata={"unit": "m"})  # equal to "f4", and not the same
    for dtype in ["f4", with_unit, "i4", ">f4", "?", "c16", "M8[ns]", "U3"]:
        for shape in [(300,), (20, 30), (30, 20)]:
            array = (np.arange(np.prod(shape)) % 2).astype(dtype).reshape(shape)
            for _ in range(2):
                encoded = encode(array)
                assert encoded.sizes[1:] == [array.nbytes]
                received = decode(encoded.head, [bytearray(bytes(frame)) for frame in encoded.buffers])
                assert_same(received, array)
                assert received.dtype.metadata == array.dtype.metadata


def test_large_arrays_and_tensors_are_not_copied():
    array, tensor = np.zeros(100_000), torch.zeros(100_000)
    encoded = encode({"array": array, "tensor": tensor})
    assert len(encoded.head) < 1000
    array[0] = tensor[0] = 1.0
    firsts = {bytes(memoryview(frame)[:8]) for frame in encoded.frames()[1:]}
    assert firsts == {np.float64(1).tobytes(), np.float32(1).tobytes() + bytes(4)}


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros(SIZE, np.uint8),
        lambda: np.zeros((SIZE // 1024, 2048), np.uint8)[:, ::2],
        lambda: np.zeros((1024, SIZE // 1024), np.uint8).T,
        lambda: np.zeros((64, 64, 2, SIZE // 4096), np.uint8).transpose(1, 3, 0, 2)[:, :, :, :1],
        lambda: np.zeros(SIZE // 8, "M8[s]"),
        lambda: np.zeros(SIZE // 8, [("a", "i4"), ("b", "f4")])[::2],
        lambda: torch.zeros(SIZE // 2, dtype=torch.bfloat16),
        lambda: torch.zeros(SIZE // 2048, 2048, dtype=torch.bfloat16)[:, ::2],
        lambda: torch.zeros(SIZE // 8, dtype=torch.complex64).conj(),
        lambda: {"bytes": bytes(SIZE)},
        lambda: [1, {"bytearray": bytearray(SIZE)}],
    ],
    ids=[
        *["array", "strided", "transposed", "four axes", "dates", "records"],
        *["tensor", "strided tensor", "conjugated tensor", "bytes in a dict", "bytearray in a list"],
    ],
)
def test_nothing_is_copied_on_the_way_but_once_into_place(make):
    sent = make()
    block = np.empty(SIZE + 4096, np.uint8)
    encode(sent).write_into(block, offsets_of(encode(sent)))  # what is made on first use is made now
    tracemalloc.start()
    try:
        encoded = encode(sent)
        encoded.write_into(block, offsets_of(encoded))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < SIZE // 8


def test_what_has_gaps_is_copied_by_the_first_call_only():
    encoded = encode(np.zeros((1000, 1000))[:, ::2])
    first, second = encoded.frames(), encoded.frames()
    assert first[1] is second[1]


def test_a_snapshot_shares_nothing_with_the_object():
    array, strided = np.zeros(1000), np.zeros((100, 100))
    tensor, text = torch.zeros(1000), bytearray(100_000)
    sent = [array, strided[:, ::2], tensor, tensor[::2], text]
    head, *buffers = encode(sent).snapshot()
    array[:] = strided[:] = tensor[:] = 1
    text[0] = 1
    received = decode(head, buffers)
    assert not any(np.any(np.asarray(each)) for each in received[:4])
    assert received[4] == bytes(100_000)


@pytest.mark.parametrize("offsets", [[0], [0, 1, 2], [0, -1], [0, 1 << 20]])
def test_frames_that_do_not_fit_are_refused(offsets):
    encoded = encode(np.zeros(1000))
    with pytest.raises(ValueError, match=r"do not fit|zip"):
        encoded.write_into(np.zeros(20_000, np.uint8), offsets)


@pytest.mark.parametrize(
    "make",
    [lambda: np.zeros(1000), lambda: torch.zeros(1000), lambda: torch.zeros(1000, dtype=torch.bfloat16)],
)
def test_memory_lives_as_long_as_the_last_view_of_it(make):
    encoded = encode([make()])
    block = written(encoded)
    piece = block[encoded.sizes[0] :]
    given_back = threading.Event()
    weakref.finalize(piece, given_back.set)
    received = decode(encoded.head, [piece])
    del piece
    view = received[0][10:20]
    del received
    gc.collect()
    view[0] = 7
    assert not given_back.is_set()
    assert np.frombuffer(block, np.uint8)[encoded.sizes[0] :].any(), "it was not copied"
    del view
    gc.collect()
    assert given_back.is_set()


@pytest.mark.parametrize("share", [True, False])
def test_views_of_one_storage_keep_their_memory_together(share):
    base = torch.zeros(1000)
    encoded = encode([base[:600], base[400:]] if share else [base[:500], base[500:]])
    assert len(encoded.sizes) == (2 if share else 3)
    block = written(encoded)
    first, second = decode(
        encoded.head,
        [
            block[begin : begin + size]
            for begin, size in list(zip(offsets_of(encoded), encoded.sizes, strict=True))[1:]
        ],
    )
    del first
    second[0] = 1
    assert second.sum() == 1


def test_read_only_memory_is_copied_so_that_the_object_can_be_written():
    encoded = encode([np.zeros(1000), torch.zeros(1000)])
    array, tensor = decode(encoded.head, [bytes(buffer) for buffer in encoded.frames()[1:]])
    array[0] = tensor[0] = 1
    assert (array.sum(), tensor.sum()) == (1, 1)


class Handing:
    """Hands out its memory by itself, as data frames and tables of other packages do."""

    def __init__(self, memory, readonly=False):
        self.memory, self.readonly = memory, readonly

    def __reduce_ex__(self, protocol):
        memory = self.memory.toreadonly() if self.readonly else self.memory
        return Handing, (pickle.PickleBuffer(memory), self.readonly)


def test_classes_that_hand_out_their_memory_get_it_beside_arrays_and_tensors():
    own = Handing(memoryview(bytearray(b"own" * 1000)))
    fixed = Handing(memoryview(bytearray(b"fixed" * 1000)), readonly=True)
    sent = [np.arange(1000), own, torch.arange(1000), fixed, torch.arange(10), np.arange(500)]
    for way in (inline, placed):
        received = way(sent)
        for index in (0, 2, 4, 5):
            assert_same(received[index], sent[index])
        assert bytes(received[1].memory) == b"own" * 1000
        assert bytes(received[3].memory) == b"fixed" * 1000
        assert memoryview(received[3].memory).readonly


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(1000, dtype=torch.int32),
        torch.arange(1000.0).to(torch.bfloat16).reshape(10, 100)[:, ::3],
        torch.arange(1000.0).reshape(10, 20, 5).permute(2, 0, 1),
        torch.arange(1000).to(torch.complex128)[::2],
        torch.tensor(3.0),
        torch.ones(5, 1).expand(5, 7),
        torch.empty(0, 3),
    ],
    ids=["plain", "strided", "permuted", "complex", "scalar", "expanded", "empty"],
)
def test_tensors_on_a_device_copy_themselves_into_place(tensor):
    table, parts = TensorTable(torch), []
    index = table._add_on_device(
        tensor, dtypes(torch)[tensor.dtype], 0
    )  # which device it is makes no difference
    table.finish(parts)
    row = table.rows[index]
    row.device = "cuda"  # where there is none it comes to the CPU
    reader = TensorReader([memoryview(copied(part)) for part in parts])
    assert_same(reader.tensor(row), tensor)
