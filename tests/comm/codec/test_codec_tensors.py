from collections import OrderedDict

import numpy as np
import pytest
import torch

from codec_cases import TENSOR_DTYPES, WAYS, assert_same, bits
from effort import case
from rlinf_scheduler.comm import encode

pytestmark = [
    pytest.mark.parametrize("through", WAYS),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions"),
    pytest.mark.filterwarnings("ignore:Sparse CS[CR] tensor support is in beta"),
]


def pattern(dtype, count=300):
    memory = np.arange(count * dtype.itemsize, dtype=np.uint8) % (2 if dtype is torch.bool else 251)
    return torch.from_numpy(memory).view(dtype)


def test_every_dtype_survives_in_every_geometry(through):
    for dtype in TENSOR_DTYPES:
        with case(dtype):
            check_every_geometry(through, pattern(dtype))


def check_every_geometry(through, whole):
    sent = [
        *[whole, whole[::2], whole[7], whole[:0], whole[:1], whole.view(20, 15).t()],
        *[whole.view(3, 10, 10)[:, ::3, 1:], whole[:15].expand(4, 15), whole[::3].expand(3, 2, 100)],
        *[whole.unfold(0, 10, 1), whole.as_strided((30, 1), (2, 0)), whole.view(2, 150)[:, :0]],
    ]
    for received, one in zip(through(sent), sent, strict=True):
        assert_same(received, one)
    for one in sent:
        assert_same(through(one), one)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.quantize_per_tensor(x, 0.1, 2, torch.quint8),
        lambda x: torch.quantize_per_tensor(x, 0.1, 2, torch.qint32),
        lambda x: torch.quantize_per_tensor(x, 0.1, 2, torch.qint8)[::2],
        lambda x: torch.quantize_per_channel(x, torch.rand(40) + 0.1, torch.arange(40), 0, torch.qint8),
        lambda x: torch.quantize_per_channel(x, torch.rand(30) + 0.1, torch.zeros(30), 1, torch.quint8),
        lambda x: torch.quantize_per_channel(x, torch.rand(40) + 0.1, torch.zeros(40), 0, torch.quint4x2),
    ],
    ids=["per tensor", "32 bits", "strided", "per channel", "float zero points", "4 bits"],
)
def test_quantised_tensors_survive(through, make):
    sent = make(torch.randn(40, 30))
    received = through({"it": sent, "again": sent})["it"]
    assert (received.dtype, received.shape, received.stride()) == (sent.dtype, sent.shape, sent.stride())
    assert received.qscheme() == sent.qscheme()
    assert torch.equal(received.dequantize(), sent.dequantize())


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
def test_tensors_of_other_layouts_survive(through, layout):
    sent = getattr(torch.eye(40), layout)()
    received = through(sent)
    assert received.layout == sent.layout
    assert torch.equal(received.to_dense(), torch.eye(40))


def test_tensors_without_memory_survive(through):
    received = through(torch.empty(3, 4, device="meta"))
    assert received.is_meta
    assert received.shape == (3, 4)


def test_a_small_view_of_a_large_tensor_sends_only_itself(through):
    large = torch.zeros(1000, 1000)
    assert encode(large.view(-1)[10:20]).size_bytes < 1000
    assert encode(large[:, 3]).size_bytes < 5000
    assert encode(large[:, 3].expand(1000, 1000)).size_bytes < 5000
    assert_same(through(large[:, 3]), large[:, 3])


def test_an_expanded_tensor_sends_one_row(through):
    sent = torch.arange(1000.0).expand(1000, 1000)
    assert encode(sent).size_bytes < 5000
    received = through(sent)
    assert torch.equal(received, sent)
    assert received.stride() == sent.stride()


@pytest.mark.parametrize("order", [(0, 3, 1, 2), (3, 2, 1, 0), (1, 0, 2, 3)])
def test_a_tensor_without_gaps_keeps_its_strides(through, order):
    sent = torch.arange(1680.0).view(5, 6, 7, 8).permute(order)
    received = through(sent)
    assert_same(received, sent)
    assert received.stride() == sent.stride()


def test_views_of_one_storage_travel_once_and_still_share(through):
    base = torch.arange(1000.0)
    sent = {
        "half": base[:500],
        "all": base,
        "square": base[:100].view(10, 10).t(),
        "bytes": base.view(torch.uint8)[4:9],
        "even": base[::2],
        "grad": base[3:9].detach().requires_grad_(),
    }
    assert encode(sent).size_bytes < 5000
    received = through(sent)
    for name, tensor in sent.items():
        assert_same(received[name], tensor)
    received["all"][1:5] = -1
    assert received["half"][1] == received["square"][1, 0] == received["even"][1] == -1
    assert received["bytes"].tolist() == [0, 0, 0x80, 0xBF, 0]
    assert received["grad"][0] == -1
    addresses = {tensor.untyped_storage().data_ptr() for tensor in received.values()}
    assert len(addresses) == 1


def test_a_conjugated_view_still_shares(through):
    base = torch.randn(100, dtype=torch.complex64)
    received, conjugated = through([base, base.conj()])
    received[0] = 1 + 2j
    assert conjugated[0] == 1 - 2j


def test_neighbours_in_one_storage_do_not_travel_together(through):
    base = torch.arange(1000.0)
    sent = [base[:10], base[500:510]]
    assert encode(sent).size_bytes < 500
    assert_same(through(sent), sent)


def test_columns_of_a_wide_matrix_travel_apart_and_the_same_one_still_shares(through):
    wide = torch.arange(1_000_000.0).view(1000, 1000)
    sent = [wide[:, 3], wide[:, 5], wide[:, 3], wide[:, 4:6]]
    assert encode(sent).size_bytes < 20_000
    received = through(sent)
    assert_same(received, sent)
    received[0][7] = -1
    assert received[2][7] == -1


def test_arrays_that_share_memory_between_storages_survive(through):
    array = np.arange(1000.0)
    sent = [torch.from_numpy(array[100:300]), torch.from_numpy(array[200:]), torch.from_numpy(array[:250])]
    assert_same(through(sent), sent)


def test_the_same_tensor_twice_is_one_object_again(through):
    tensor = torch.ones(300)
    first, second = through([tensor, {"again": tensor}])
    assert first is second["again"]


def test_a_received_tensor_is_independent_and_can_be_written(through):
    sent = torch.zeros(1000)
    received = through(sent)
    received += 1
    assert not sent.any()


class Tagged(torch.Tensor):
    pass


class Weight(torch.nn.Parameter):
    pass


class Counted(torch.Tensor):
    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Counted.calls += 1
        return super().__torch_function__(func, types, args, kwargs)


def tagged(tensor):
    tensor.tag = ["shard", 3]
    return tensor


@pytest.mark.parametrize(
    "sent",
    [
        torch.nn.Parameter(torch.randn(300)),
        torch.nn.Parameter(torch.randn(300), requires_grad=False),
        torch.nn.Parameter(torch.randn(30, 30)[:, ::2]),
        torch.nn.Buffer(torch.randn(300)),
        torch.randn(300, requires_grad=True),
        torch.randn(300, requires_grad=True) * 2,
        torch.randn(300).as_subclass(Tagged),
        torch.randn(300, requires_grad=True).as_subclass(Tagged)[::2],
        Weight(torch.randn(300)),
        tagged(torch.randn(300)),
        tagged(torch.nn.Parameter(torch.randn(300))),
        tagged(torch.randn(300).as_subclass(Tagged)),
        tagged(Weight(torch.randn(300))),
    ],
    ids=[
        *["parameter", "frozen", "strided parameter", "buffer", "leaf", "result", "subclass", "view of one"],
        *["kind of parameter", "attribute", "parameter with one", "subclass with one", "kind with one"],
    ],
)
def test_tensors_keep_what_they_are_and_travel_beside_the_pickle(through, sent):
    encoded = encode({"it": sent})
    assert encoded.sizes[1] == sent.nbytes
    received = through({"it": sent})["it"]
    assert_same(received, sent)
    assert received.is_leaf
    assert received.__dict__ == sent.__dict__


def test_what_a_subclass_does_with_torch_functions_is_left_alone(through):
    sent = torch.randn(300).as_subclass(Counted)
    before = Counted.calls
    encode(sent)
    assert Counted.calls == before
    received = through(sent)
    assert type(received) is Counted
    assert bits(received.as_subclass(torch.Tensor)) == bits(sent.as_subclass(torch.Tensor))


class Grouped(dict):
    """Like a TensorDict: a mapping of its own class, with a batch size and a locked flag."""

    __slots__ = ("batch_size", "locked")

    def __getstate__(self):
        return {"batch_size": self.batch_size, "locked": self.locked, "items": dict(self)}

    def __setstate__(self, state):
        self.batch_size, self.locked = state["batch_size"], state["locked"]
        self.update(state["items"])

    def __reduce__(self):
        return Grouped, (), self.__getstate__()


def grouped(tensors, batch_size):
    try:
        from tensordict import TensorDict
    except ImportError:
        made = Grouped(tensors)
        made.batch_size, made.locked = torch.Size(batch_size), False
        return made
    return TensorDict(tensors, batch_size=batch_size)


def test_dictionaries_of_tensors_with_a_batch_size_survive(through):
    inner = grouped({"reward": torch.randn(100, 1, dtype=torch.bfloat16)}, [100])
    sent = grouped({"observation": torch.randn(100, 50)[:, ::2], "next": inner}, [100])
    assert len(encode(sent).sizes) == 3
    received = through(sent)
    assert type(received) is type(sent)
    assert received.batch_size == torch.Size([100])
    assert_same(received["observation"], sent["observation"])
    assert_same(received["next"]["reward"], inner["reward"])


def test_state_dicts_survive(through):
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    sent = module.state_dict()
    received = through(sent)
    assert isinstance(received, OrderedDict)
    assert list(received) == list(sent)
    assert all(torch.equal(received[name], sent[name]) for name in sent)


def test_modules_survive_with_tied_weights(through):
    module = torch.nn.ModuleDict({"in": torch.nn.Linear(8, 8), "out": torch.nn.Linear(8, 8)})
    module["out"].weight = module["in"].weight
    received = through(module)
    assert received["out"].weight is received["in"].weight
    assert type(received["in"].weight) is torch.nn.Parameter
    assert_same(received["in"].bias, module["in"].bias)


def test_optimizers_survive_with_their_state(through):
    module = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    sent, received = optimizer.state_dict(), through(optimizer.state_dict())
    assert_same(received["state"][0]["exp_avg"], sent["state"][0]["exp_avg"])
    assert received["param_groups"] == sent["param_groups"]
