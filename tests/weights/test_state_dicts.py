"""State dicts as bytes, and into tensors and arrays that are there already."""

import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from effort import case
from nested_tensors import LAYOUTS, nested
from rlinf_scheduler.comm.codec import copying
from rlinf_scheduler.errors import WeightsError, WeightsMismatch
from rlinf_scheduler.weights.held import encode_held
from rlinf_scheduler.weights.sources import MemoryPlace, Sources
from rlinf_scheduler.weights.target import WeightsTarget

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn]
DTYPES = [
    *FLOATS,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.complex64,
    torch.complex128,
]


def frames_of(state_dict):
    """What arrives: the frames in memory of the receiver's own."""
    return [bytearray(frame) for frame in encode_held("policy", state_dict)[0].frames()]


def copy_over(state_dict, into):
    frames, target = frames_of(state_dict), WeightsTarget("policy", into)
    sources = Sources([encode_held("policy", state_dict)[1]], [MemoryPlace("")])
    target.write(3, target.plan(3, sources, MemoryPlace("")), {0: frames})
    return into


def test_tensors_of_every_dtype_and_shape_arrive():
    for dtype, shape in itertools.product(DTYPES, [(), (3,), (2, 3, 4), (0, 5)]):
        with case((dtype, shape)):
            tensor = (torch.rand(shape) * 100).to(dtype)
            into = copy_over({"a": tensor}, {"a": torch.zeros(shape, dtype=dtype)})
            assert torch.equal(
                into["a"].view(torch.uint8) if shape else into["a"],
                tensor.view(torch.uint8) if shape else tensor,
            )


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.T,
        lambda t: t[::2, 1:],
        lambda t: t[:1].expand(5, 6),
        lambda t: t.to(torch.complex64).conj(),
        lambda t: torch.nn.Parameter(t),
        lambda t: t.to(torch.bfloat16)[:, ::3],
    ],
)
def test_views_and_parameters_arrive_with_their_values(view):
    tensor = view(torch.arange(30.0).reshape(5, 6))
    into = copy_over({"a": tensor}, {"a": torch.zeros(tensor.shape, dtype=tensor.dtype)})
    assert torch.equal(into["a"], tensor.detach())


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(12, dtype=np.int16)[::2],
        np.array(4.0),
        np.zeros((0, 2)),
        np.arange(3, dtype=">f4"),
        np.array(["2026-01-01"], dtype="M8[D]"),
    ],
)
def test_arrays_arrive(array):
    into = copy_over({"a": array}, {"a": np.zeros(array.shape, array.dtype)})
    np.testing.assert_array_equal(into["a"], array)


def test_large_arrays_arrive_in_those_of_a_subclass(monkeypatch):
    monkeypatch.setattr(copying, "PARALLEL_BYTES", 1 << 14)
    monkeypatch.setattr(copying, "BATCH_BYTES", 1 << 13)
    array = np.arange(4096.0).reshape(2, -1)
    into = np.zeros_like(array)
    copy_over({"a": array}, {"a": into.view(np.matrix)})
    np.testing.assert_array_equal(into, array)


def test_the_destination_keeps_its_memory_its_dtype_and_its_gradients():
    module = torch.nn.Linear(3, 2).to(torch.float64)
    weight, address = module.weight, module.weight.data_ptr()
    other = torch.nn.Linear(3, 2)
    copy_over(other.state_dict(), module)
    assert module.weight is weight
    assert weight.data_ptr() == address
    assert weight.dtype == torch.float64
    assert weight.requires_grad
    assert torch.equal(weight, other.weight.to(torch.float64))


def test_buffers_and_tied_weights_of_a_module_arrive_and_travel_once():
    def tied():
        module = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 64)
        )
        module[2].weight = module[0].weight
        return module

    one, other = tied(), tied()
    one(torch.randn(8, 64))
    encoded, _ = encode_held("policy", one)
    assert encoded.size_bytes < 2 * 64 * 64 * 4
    copy_over(one.state_dict(), other)
    assert all(torch.equal(mine, other.state_dict()[key]) for key, mine in one.state_dict().items())


def test_tensors_go_into_arrays_and_arrays_into_tensors():
    into = {
        "t": np.zeros(2, np.float64),
        "b": np.zeros(2, np.float32),
        "n": torch.zeros(2, dtype=torch.float16),
    }
    published = {"t": torch.tensor([1.5, 2]), "b": torch.tensor([3.5, 4]).bfloat16(), "n": np.array([5.5, 6])}
    copy_over(published, into)
    assert {key: list(map(float, value)) for key, value in into.items()} == {
        "t": [1.5, 2],
        "b": [3.5, 4],
        "n": [5.5, 6],
    }


def test_everything_that_does_not_fit_is_in_one_error_and_nothing_is_written():
    published = {
        "same": np.ones(2),
        "gone": np.ones(2),
        "wide": np.ones((2, 3)),
        "float": np.ones(2),
        "fixed": np.ones(1),
    }
    fixed = np.zeros(1)
    fixed.flags.writeable = False
    into = {
        "same": np.zeros(2),
        "new": np.zeros(2),
        "wide": torch.zeros(3, 2),
        "float": np.zeros(2, np.int64),
        "fixed": fixed,
    }
    with pytest.raises(WeightsMismatch) as caught:
        copy_over(published, into)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.name, error.version) == ("policy", 3)
    assert error.missing == ("new",)
    assert error.unexpected == ("gone",)
    assert str(error) == (
        "weights 'policy': version 3 does not fit:\n"
        "  not published: new\n"
        "  not in the destination: gone\n"
        "  'wide' has shape (2, 3), and (3, 2) in the destination\n"
        "  'float' is float64, which does not go into int64\n"
        "  'fixed' cannot be written to in the destination: it is read-only"
    )
    assert not into["same"].any()


def made_for_inference(make):
    with torch.inference_mode():
        return make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(4, 3),
        lambda: torch.zeros(4, 3, dtype=torch.bfloat16),
        lambda: torch.zeros(3, 4).T,
        lambda: torch.nn.Parameter(torch.zeros(4, 3, dtype=torch.float64)),
    ],
)
def test_weights_go_into_tensors_that_were_made_for_inference(make):
    into, weights = made_for_inference(make), torch.arange(12.0).reshape(4, 3)
    copy_over({"a": weights}, {"a": into})
    assert torch.equal(into.float(), weights)


def test_weights_of_a_module_made_for_inference_go_into_another_one():
    other = made_for_inference(lambda: torch.nn.Linear(3, 2).bfloat16())
    one = made_for_inference(lambda: torch.nn.Linear(3, 2))
    copy_over(one.state_dict(), other)
    assert torch.equal(other.weight, one.weight.bfloat16())


def test_weights_go_into_lazily_conjugated_and_negated_views():
    real, imaginary = torch.zeros(3, dtype=torch.complex64), torch.zeros(3, dtype=torch.complex64)
    into = {"a": real.conj(), "b": imaginary.conj().imag}
    copy_over({"a": torch.full((3,), 1 + 2j), "b": torch.ones(3)}, into)
    assert real.tolist() == [1 - 2j] * 3
    assert imaginary.tolist() == [-1j] * 3


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tensors_that_cannot_be_written_to_are_named_with_the_reason_before_the_first_byte():
    freed = torch.zeros(3)
    freed.untyped_storage().resize_(0)
    into = {
        "expanded": torch.zeros(1).expand(3),
        "windows": torch.zeros(4).unfold(0, 2, 1),
        "sparse": torch.zeros(3).to_sparse(),
        "meta": torch.zeros(3, device="meta"),
        "freed": freed,
        "lazy": torch.nn.LazyLinear(3).weight,
        "quantised": torch.quantize_per_tensor(torch.zeros(3), 1, 0, torch.qint8),
        "fields": np.lib.stride_tricks.as_strided(np.zeros(3), (3,), (0,)),
        "real": torch.zeros(3),
    }
    shapes = {"windows": (3, 2)}
    first = np.zeros(3)
    published = {"first": np.ones(3), **{key: torch.ones(shapes.get(key, 3)) for key in into}}
    published["real"] = torch.ones(3) * 1j
    with pytest.raises(WeightsMismatch) as caught:
        copy_over(published, {"first": first, **into})
    shared = "expanded, or overlaps itself: elements of it lie in the same memory"
    assert list(caught.value.unfit) == [
        f"'expanded' cannot be written to in the destination: it is {shared}",
        f"'windows' cannot be written to in the destination: it is {shared}",
        "'sparse' cannot be written to in the destination: it is a Tensor of layout torch.sparse_coo, not a plain "
        "dense tensor",
        "'meta' cannot be written to in the destination: it is on the meta device, not a plain dense tensor",
        "'freed' cannot be written to in the destination: it is without memory: its storage was freed",
        "'lazy' cannot be written to in the destination: it is an UninitializedParameter, not a plain dense tensor",
        "'quantised' cannot be written to in the destination: it is quantised (torch.qint8), not a plain dense tensor",
        f"'fields' cannot be written to in the destination: it is {shared}",
        "'real' is complex64, which does not go into float32",
    ]
    assert not first.any()


class Sharded(torch.Tensor):
    """A tensor that holds others, as a DTensor does."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


def test_a_tensor_that_holds_others_is_named_before_the_first_byte():
    sharded = torch.Tensor._make_wrapper_subclass(Sharded, (3,), dtype=torch.float32)
    into = {"first": torch.zeros(3), "sharded": sharded}
    with pytest.raises(
        WeightsMismatch, match=r"'sharded' cannot be written to .* it is a Sharded, not a plain"
    ):
        copy_over({"first": torch.ones(3), "sharded": torch.ones(3)}, into)
    assert not into["first"].any()


@pytest.mark.parametrize("array", [np.zeros(3, np.longdouble), np.zeros(3, ">f4"), np.zeros(3)[::-1]])
def test_floats_that_only_torch_has_go_into_arrays_that_it_cannot_write_to(array):
    copy_over({"a": torch.tensor([1.5, 2, 3]).bfloat16()}, {"a": array})
    assert array.tolist() == [1.5, 2, 3]


def test_arrays_that_are_no_numbers_do_not_go_into_tensors():
    first = torch.zeros(1)
    published = {"first": torch.ones(1), "day": np.array(["2026-01-01"], dtype="M8[D]")}
    with pytest.raises(WeightsMismatch, match=r"'day' is datetime64\[D\], which does not go into float32"):
        copy_over(published, {"first": first, "day": torch.zeros(1)})
    assert not first.any()


def test_dtypes_that_torch_does_not_convert_are_named_before_the_first_byte():
    packed = torch.zeros(3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    into = {"first": torch.zeros(3), "packed": torch.zeros_like(packed)}
    with pytest.raises(WeightsMismatch, match="'packed' is float32, which does not go into float4_e2m1fn_x2"):
        copy_over({"first": torch.ones(3), "packed": torch.ones(3)}, into)
    assert not into["first"].any()
    copy_over({"first": torch.ones(3), "packed": packed}, into)


def test_hundreds_of_keys_that_do_not_fit_make_a_short_message():
    published = {f"key.{number}": np.ones(1) for number in range(500)}
    with pytest.raises(WeightsMismatch, match=r"key\.19, and 480 more") as caught:
        copy_over(published, {})
    assert len(caught.value.unexpected) == 500


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (1.5, "'a' is of type float, neither tensor nor array"),
        ({"b": 1}, "'a' is of type dict"),
        (np.array([{}]), "'a' is an array of objects"),
        (torch.zeros(2, 2).to_sparse(), "plain dense tensors"),
        (torch.zeros(2, device="meta"), "plain dense tensors"),
    ],
)
def test_what_has_no_plain_elements_cannot_be_published(value, problem):
    with pytest.raises(WeightsError, match=problem):
        encode_held("policy", {"a": value})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nor_can_nested_tensors(layout):
    with pytest.raises(WeightsError, match="plain dense tensors"):
        encode_held("policy", {"a": nested(layout)})


def test_keys_are_strings():
    with pytest.raises(WeightsError, match="keys are strings"):
        encode_held("policy", {1: np.zeros(1)})


def test_weights_go_into_modules_and_dicts_only():
    with pytest.raises(WeightsError, match="not into a list"):
        WeightsTarget("policy", [np.zeros(1)])


def test_arrays_need_no_torch():
    program = (
        "import sys, numpy as np\n"
        "from rlinf_scheduler.weights.sources import MemoryPlace, Sources\n"
        "from rlinf_scheduler.weights.held import encode_held\n"
        "from rlinf_scheduler.weights.target import WeightsTarget\n"
        "into = {'a': np.zeros(2)}\n"
        "encoded, layout = encode_held('p', {'a': np.ones(2)})\n"
        "frames, here = list(map(bytearray, encoded.frames())), MemoryPlace('')\n"
        "target = WeightsTarget('p', into)\n"
        "target.write(1, target.plan(1, Sources([layout], [here]), here), {0: frames})\n"
        "sys.exit('torch' in sys.modules or bool(into['a'].sum() != 2))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
