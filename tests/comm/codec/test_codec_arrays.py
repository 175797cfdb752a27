import numpy as np
import pytest

from codec_cases import ARRAY_DTYPES, WAYS, assert_same
from effort import case
from rlinf_scheduler.comm import encode

pytestmark = pytest.mark.parametrize("through", WAYS)

EMPTY_DTYPES = ["U0", "S0", "V0"]


def filled(dtype, shape):
    dtype = np.dtype(dtype)
    if dtype.itemsize == 0 or dtype.names is not None:
        return np.zeros(shape, dtype)
    return (np.arange(np.prod(shape, dtype=int)) % 100).astype("u1").astype(dtype).reshape(shape)


@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (300,), (40, 30), (3, 1, 40)], ids=str)
def test_every_dtype_survives_in_every_geometry(through, shape):
    for dtype in [*ARRAY_DTYPES, *EMPTY_DTYPES]:
        array = filled(dtype, shape)
        sent = [
            array,
            np.asfortranarray(array),
            array[..., ::2] if shape else array,
            array[::-1] if shape else array,
        ]
        with case(dtype):
            for received, one in zip(through(sent), sent, strict=True):
                assert_same(received, one)
            assert_same(through(sent[2]), sent[2])


@pytest.mark.parametrize("dtype", ["M8[ns]", [("a", "i4"), ("b", "f8")], ">f4", "U7"])
def test_dates_records_and_strings_travel_beside_the_pickle(through, dtype):
    sent = filled(dtype, 1000)
    assert encode(sent).sizes[1] == sent.nbytes
    assert_same(through(sent), sent)


@pytest.mark.parametrize("array", [np.arange(3.0), np.arange(1000.0)], ids=["small", "large"])
def test_received_arrays_are_writable_even_if_the_sent_one_is_not(through, array):
    array.flags.writeable = False
    received = through(array)
    received[0] = 7
    assert received[0] == 7


def test_the_same_array_twice_is_one_object_again(through):
    array = np.arange(300)
    first, second = through([array, array])
    assert first is second


def test_an_array_without_gaps_keeps_its_strides(through):
    sent = np.arange(1680.0).reshape(5, 6, 7, 8).transpose(0, 3, 1, 2)
    received = through(sent)
    assert_same(received, sent)
    assert received.strides == sent.strides


def test_an_array_with_gaps_keeps_the_order_of_its_axes(through):
    sent = np.zeros((100, 200), order="F")[::2, ::2]
    assert through(sent).flags.f_contiguous


def test_repeated_rows_are_rows_of_their_own_again(through):
    received = through(np.broadcast_to(np.arange(10.0), (30, 10)))
    received[0] = -1
    assert received[1].tolist() == list(range(10))


def test_arrays_with_a_dtype_that_says_more_keep_it(through):
    dtype = np.dtype("i4", metadata={"unit": "m"})
    assert through(np.zeros(300, dtype)).dtype.metadata == {"unit": "m"}
    aligned = np.dtype([("a", "u1"), ("b", "f8")], align=True)
    assert through(np.zeros(300, aligned)).dtype.isalignedstruct


def test_objects_within_an_object_array_travel_beside_the_pickle(through):
    sent = np.empty(2, object)
    sent[:] = [np.arange(1000), "text"]
    assert encode(sent).sizes[1] == sent[0].nbytes
    received = through(sent)
    assert np.array_equal(received[0], sent[0])
    assert received[1] == "text"


@pytest.mark.parametrize("size", [1, 31, 32, 4000])
def test_of_objects_no_address_in_this_process_travels(through, size):
    sent = np.empty(size, object)
    sent[:] = [[number] for number in range(size)]
    received = through(sent)
    assert_same(received, sent)
    assert not any(one is other for one, other in zip(received, sent, strict=True))


class Named(np.ndarray):
    name = None


class OwnWay(np.ndarray):
    def __reduce__(self):
        return OwnWay.made, (self.tolist(),)

    @staticmethod
    def made(values):
        return np.array(values).view(OwnWay)


def test_subclasses_survive_with_their_attributes_and_travel_beside_the_pickle(through):
    sent = np.arange(1000.0).view(Named)
    sent.name = "speed"
    assert encode(sent).sizes[1] == sent.nbytes
    received = through(sent)
    assert_same(received, sent)
    assert received.name == "speed"
    assert type(through(np.arange(1000).view(OwnWay))) is OwnWay


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_matrices_and_record_arrays_survive(through):
    assert_same(through(np.matrix(np.ones((30, 30)))), np.matrix(np.ones((30, 30))))
    sent = np.rec.array([(1, 2.5)] * 300, dtype=[("a", "i4"), ("b", "f8")])
    received = through(sent)
    assert_same(received, sent)
    assert received[3].b == 2.5


@pytest.mark.parametrize("dtype", ["f8", "i4", "M8[s]", "U3", [("a", "i4"), ("b", "f8")], "O"], ids=str)
def test_masked_arrays_survive(through, dtype):
    data = filled(dtype, (40, 30))
    mask = np.zeros((40, 30), bool)
    mask[3:5] = True
    for sent in (
        np.ma.array(data, mask=mask, hard_mask=True),
        np.ma.array(data),
        np.ma.array(data, mask=mask)[::2, ::3],
    ):
        received = through(sent)
        assert type(received) is np.ma.MaskedArray
        assert received.dtype == sent.dtype
        assert np.array_equal(received.data, sent.data)
        assert np.array_equal(received.mask, sent.mask)
        assert (received.mask is np.ma.nomask) == (sent.mask is np.ma.nomask)
        assert received.hardmask == sent.hardmask
        assert str(received.fill_value) == str(sent.fill_value)


def test_a_masked_array_travels_beside_the_pickle(through):
    sent = np.ma.array(np.arange(1000.0), mask=np.arange(1000) % 2 == 0)
    assert sorted(encode(sent).sizes[1:]) == [1000, 8000]
    received = through(sent)
    received[1] = 7
    assert received.sum() == sent.sum() + 6


def test_memory_maps_arrive_in_memory(through, tmp_path):
    sent = np.memmap(tmp_path / "data", np.float32, "w+", shape=(100, 10))
    sent[:] = 3
    received = through(sent)
    assert isinstance(received, np.memmap)
    assert np.array_equal(received, sent)
    received[:] = 4
    assert sent[0, 0] == 3
