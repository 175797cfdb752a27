"""Where a version goes: shards of several processes into tensors of any layout, dtype and name."""

import itertools
import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from effort import tries
from pretended_processes import of_torch, process
from rlinf_scheduler.comm.codec import copying
from rlinf_scheduler.errors import WeightsError, WeightsMismatch
from rlinf_scheduler.weights import target as target_module
from rlinf_scheduler.weights.held import Slice, encode_held, local_of
from rlinf_scheduler.weights.layout import sharded
from rlinf_scheduler.weights.plan import Rows
from rlinf_scheduler.weights.sources import MemoryPlace, Sources
from rlinf_scheduler.weights.target import WeightsTarget
from weight_meshes import Mesh, within

HERE = MemoryPlace("n0")


def published(*state_dicts):
    """The sources of a version, and what each of them sends."""
    encoded = [encode_held("policy", each) for each in state_dicts]
    payloads = [[bytearray(frame) for frame in each.frames()] for each, _ in encoded]
    return Sources([layout for _, layout in encoded], [HERE] * len(encoded)), dict(enumerate(payloads))


def fetch(version, into, **options):
    sources, payloads = version
    target = WeightsTarget("policy", into, **options)
    plan = target.plan(7, sources, HERE)
    target.write(7, plan, {number: payloads[number] for number in plan.needed})
    return into


def dtensor(tensor, mesh, coordinate, *, gaps=False):
    """What a process of a mesh has of a tensor; within `process`."""
    part = sharded(tuple(tensor.shape), mesh.sizes, coordinate, mesh.placements)
    local = torch.zeros(part.local_shape, dtype=tensor.dtype)
    if gaps and local.dim():
        local = torch.zeros(*part.local_shape, 2, dtype=tensor.dtype)[..., 0]
    for piece in part.pieces:
        local[within(piece.local_start, piece.shape)] = tensor[within(piece.start, piece.shape)]
    torch_mesh = DeviceMesh("cpu", torch.arange(len(mesh.coordinates)).reshape(mesh.sizes))
    placements = [of_torch(each) for each in mesh.placements]
    return DTensor.from_local(
        local, torch_mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def shards(model, mesh_of):
    """What each process of a mesh publishes."""
    sizes = next(iter(mesh_of.values())).sizes
    for rank, coordinate in enumerate(itertools.product(*map(range, sizes))):
        with process(rank, len(mesh_of[next(iter(model))].coordinates)):
            yield {key: dtensor(each, mesh_of[key], coordinate) for key, each in model.items()}


@st.composite
def models(draw):
    shapes = draw(
        st.dictionaries(
            st.sampled_from("abc"), st.lists(st.integers(1, 6), max_size=3).map(tuple), min_size=1
        )
    )
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int64]))
    model = {
        key: torch.arange(int(np.prod(shape))).reshape(shape).to(dtype) + 1 for key, shape in shapes.items()
    }
    sizes = st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple)
    meshes = []
    for size in (draw(sizes), draw(sizes)):
        meshes.append({key: draw(Mesh.drawn(shape, size)) for key, shape in shapes.items()})
    return model, *meshes


@settings(max_examples=tries(25), deadline=None)
@given(models(), st.sampled_from([None, torch.float64, torch.int32]), st.booleans())
def test_shards_of_one_mesh_go_into_those_of_another(drawn, dtype, gaps):
    model, of_sources, of_readers = drawn
    if dtype is not None and not next(iter(model.values())).is_floating_point():
        dtype = None
    version = published(*shards(model, of_sources))
    first = next(iter(of_readers.values()))
    for rank, coordinate in enumerate(first.coordinates):
        with process(rank, len(first.coordinates)):
            expected = {
                key: dtensor(each.to(dtype or each.dtype), of_readers[key], coordinate)
                for key, each in model.items()
            }
            into = {
                key: dtensor(torch.zeros_like(each, dtype=dtype), of_readers[key], coordinate, gaps=gaps)
                for key, each in model.items()
            }
            fetch(version, into)
            for key, each in into.items():
                assert torch.equal(local_of(each), local_of(expected[key]))


def test_slices_of_arrays_and_tensors_go_into_each_other():
    whole = np.arange(48, dtype=np.float32).reshape(8, 6)
    version = published(
        {"w": Slice(whole[:5].copy(), (0, 0), (8, 6))}, {"w": Slice(torch.tensor(whole[5:]), (5, 0), (8, 6))}
    )
    places = [np.zeros((8, 2), np.float64), torch.zeros(8, 2, dtype=torch.bfloat16), np.zeros((2, 8), "f4").T]
    for number, place in enumerate(places):
        fetch(version, {"w": Slice(place, (0, 2 * number), (8, 6))})
        assert np.array_equal(np.asarray(torch.as_tensor(place).float()), whole[:, 2 * number :][:, :2])


def test_rows_of_a_tensor_are_one_copy_and_so_are_its_columns(monkeypatch):
    monkeypatch.setattr(copying, "PARALLEL_BYTES", 1 << 16)
    monkeypatch.setattr(copying, "BATCH_BYTES", 1 << 15)
    seen = []

    def copy_all(copies):
        seen.append([target.shape for target, _ in copies])
        copying.copy_all(copies)

    monkeypatch.setattr(target_module, "copy_all", copy_all)
    whole = torch.arange(512 * 256.0).reshape(512, 256)
    version = published({"w": whole})
    rows, columns = torch.zeros(100, 256), torch.zeros(512, 64)
    fetch(version, {"w": Slice(rows, (300, 0), (512, 256))})
    fetch(version, {"w": Slice(columns, (0, 128), (512, 256))})
    assert torch.equal(rows, whole[300:400])
    assert torch.equal(columns, whole[:, 128:192])
    assert seen == [[(100 * 1024,)], [(512, 256)]]


def test_tied_parameters_travel_once_and_are_written_once(monkeypatch):
    num_bytes = []

    def copy_all(copies):
        num_bytes.append(sum(source.nbytes for _, source in copies))
        copying.copy_all(copies)

    monkeypatch.setattr(target_module, "copy_all", copy_all)

    def tied():
        module = torch.nn.Sequential(torch.nn.Linear(16, 16, bias=False), torch.nn.Linear(16, 16, bias=False))
        module[1].weight = module[0].weight
        module.register_buffer("scratch", torch.zeros(3), persistent=False)
        return module

    one, other = tied(), tied()
    version = published(one)
    assert [len(frame) for frame in version[1][0][1:]] == [16 * 16 * 4]
    fetch(version, other)
    assert torch.equal(one[1].weight, other[0].weight)
    assert num_bytes == [16 * 16 * 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tied_tensors_get_what_their_publishers_have_untied_only_if_it_is_the_same(dtype):
    weight, other = torch.full((6, 4), 1.0), torch.full((6, 4), 1.0)
    other[5, 3] = 2
    into = {"embed": torch.zeros(6, 4, dtype=dtype)}
    into["head"] = into["embed"]
    for rows in (3, 6):  # cut, and not
        parts = [slice(begin, begin + rows) for begin in range(0, 6, rows)]
        version = published(
            *(
                {
                    key: Slice(each[part].clone(), (part.start, 0), (6, 4))
                    for key, each in (("embed", weight), ("head", other))
                }
                for part in parts
            )
        )
        told = "'embed' and 'head' are one tensor in the destination, and are published with different values"
        with pytest.raises(WeightsMismatch, match=told):
            fetch(version, into)
        assert not into["embed"].any(), "nothing is written"
    fetch(published({"embed": weight, "head": weight.clone()}), into)
    assert (into["head"] == 1).all()


# -- which, and from where ------------------------------------------------------------------------


def numbers(*keys, shape=(4, 3), dtype=torch.float32):
    return {key: torch.full(shape, float(number + 1), dtype=dtype) for number, key in enumerate(keys)}


def zeros(*keys, shape=(4, 3)):
    return {key: torch.zeros(shape) for key in keys}


def written(into):
    return {key: sorted(set(each.flatten().tolist())) for key, each in into.items()}


@pytest.mark.parametrize("keys", ["*.lora_?", ["q.lora_A"], "q.lora_A"])
def test_some_keys_are_fetched_and_the_others_stay(keys):
    version = published(numbers("q.lora_A", "q.base", "k.base"))
    into = fetch(version, zeros("q.lora_A", "q.base"), keys=keys)
    assert written(into) == {"q.lora_A": [1.0], "q.base": [0.0]}


def test_a_key_that_is_nowhere_is_an_error_at_once_and_one_that_is_only_published_too():
    with pytest.raises(
        WeightsError, match=r"no key of the destination is 'layer.9\.\*', of keys=; did you mean"
    ):
        WeightsTarget("policy", zeros("layer.0.w"), keys=["layer.0.w", "layer.9.*"])
    with pytest.raises(
        WeightsError, match=r"is '\*\.lora_a\.\*', of keys=; its 2 begin with \['q\.w', 'k\.w'\]$"
    ):
        WeightsTarget("policy", zeros("q.w", "k.w"), keys="*.lora_a.*")
    with pytest.raises(WeightsMismatch, match=r"not in the destination: k\.lora$"):
        fetch(published(numbers("q.lora", "k.lora", "q.base")), zeros("q.lora"), keys="*.lora")


@pytest.mark.parametrize("rename", [lambda key: f"module.{key}", {"layers": "module.layers"}])
def test_keys_are_renamed_by_a_function_or_by_whole_names(rename):
    into = fetch(
        published(numbers("module.layers.0", "module.layers.1")), zeros("layers.0", "layers.1"), rename=rename
    )
    assert written(into) == {"layers.0": [1.0], "layers.1": [2.0]}


def test_an_exact_key_is_renamed_before_a_part_of_it():
    into = fetch(published(numbers("w", "a.v")), zeros("v", "a.v"), rename={"a.v": "a.v", "v": "w"})
    assert written(into) == {"v": [1.0], "a.v": [2.0]}


def test_fused_parameters_are_made_of_several_renamed_ones():
    version = published(numbers("m.0.q.weight", "m.0.k.weight", "m.0.v.weight", "m.0.o.weight"))
    into = {"0.qkv.weight": torch.zeros(12, 3), "0.o.weight": torch.zeros(4, 3)}
    fetch(
        version, into, fuse={"qkv": ["q", "k", "v"], "gate_up": ["gate", "up"]}, rename=lambda key: f"m.{key}"
    )
    assert into["0.qkv.weight"][:, 0].tolist() == [1.0] * 4 + [2.0] * 4 + [3.0] * 4
    assert written(into)["0.o.weight"] == [4.0]


def test_a_fused_parameter_may_be_made_of_several_dtypes():
    version = published({**numbers("q"), **numbers("k", dtype=torch.bfloat16)})
    into = fetch(version, {"qk": torch.zeros(8, 3)}, fuse={"qk": ["q", "k"]})
    assert written(into) == {"qk": [1.0]}


def test_a_shard_of_a_fused_parameter_comes_from_shards_of_its_parts():
    q, k = torch.arange(8.0).reshape(4, 2), 100 + torch.arange(4.0).reshape(2, 2)
    halves = [
        {"q": Slice(q[at : at + 2], (at, 0), (4, 2)), "k": Slice(k[at // 2 :][:1], (at // 2, 0), (2, 2))}
        for at in (0, 2)
    ]
    into = Slice(torch.zeros(2, 2), (3, 0), (6, 2))
    fetch(published(*halves), {"qk": into}, fuse={"qk": ["q", "k"]})
    assert torch.equal(into.tensor, torch.cat([q, k])[3:5])


def test_a_parameter_is_split_by_rows():
    fused = torch.arange(24.0).reshape(8, 3)
    into = zeros("l.gate.w", "l.up.w")
    fuse = {"gate.w": Rows("gate_up.w", 0, 4), "up.w": Rows("gate_up.w", 4)}
    fetch(published({"l.gate_up.w": fused}), into, fuse=fuse)
    assert torch.equal(torch.cat(list(into.values())), fused)


def test_what_cannot_be_made_is_named_with_its_parts_and_nothing_is_written():
    version = published({**numbers("q", "k", "wide"), "v": torch.ones(4, 5)})
    into = {"qk": torch.zeros(9, 3), "kv": torch.zeros(8, 3), "gu": torch.zeros(8, 3), **zeros("wide")}
    with pytest.raises(WeightsMismatch) as caught:
        fetch(version, into, fuse={"qk": ["q", "k"], "kv": ["k", "v"], "gu": ["g", "u"]})
    assert caught.value.missing == ("g", "u")
    assert list(caught.value.unfit) == [
        "'qk' cannot be had: it has shape (9, 3), and 'q' and 'k' 8 rows",
        "'kv' cannot be had: it has shape (8, 3), and 'v' (4, 5)",
    ]
    assert not into["wide"].any()


def test_without_strict_what_is_on_both_sides_is_fetched_and_the_rest_is_told_once(caplog):
    caplog.set_level(logging.WARNING)
    version = published(numbers("a", "b"))
    for _ in range(2):
        assert written(fetch(version, zeros("a", "c"), strict=False)) == {"a": [1.0], "c": [0.0]}
    (told,) = [each.getMessage() for each in caplog.records]
    assert "not published: c\n  not in the destination: b" in told


def test_without_strict_what_is_left_out_need_not_be_written_to():
    into = {**zeros("a"), "b": torch.zeros(4, 3, device="meta")}
    assert written({"a": fetch(published(numbers("a")), into, strict=False)["a"]}) == {"a": [1.0]}
    with pytest.raises(WeightsMismatch, match="'b' cannot be written to"):
        fetch(published(numbers("a", "b")), into, strict=False)


def test_without_strict_shapes_have_to_agree_and_something_has_to_be_there():
    with pytest.raises(WeightsMismatch, match=r"'a' has shape \(4, 3\), and \(3, 4\)"):
        fetch(published(numbers("a")), zeros("a", shape=(3, 4)), strict=False)
    with pytest.raises(WeightsMismatch, match="not published: b"):
        fetch(published(numbers("a")), zeros("b"), strict=False)


# -- dtypes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bit_floats_with_their_scales_arrive_as_they_are_or_as_other_floats(dtype):
    whole = (torch.rand(8, 4) * 8).to(dtype)
    scales = torch.rand(8, 1)
    version = published(
        *({"w": Slice(whole[at : at + 4], (at, 0), (8, 4)), "w_scale": scales} for at in (0, 4))
    )
    into = {"w": Slice(torch.zeros(8, 2, dtype=dtype), (0, 2), (8, 4)), "w_scale": torch.zeros(8, 1)}
    fetch(version, into)
    assert torch.equal(into["w"].tensor.float(), whole[:, 2:].float())
    assert torch.equal(into["w_scale"], scales)
    for place in (torch.zeros(8, 2, dtype=torch.bfloat16), np.zeros((8, 2), np.float32)):
        fetch(version, {"w": Slice(place, (0, 2), (8, 4))}, keys="w")
        assert np.array_equal(torch.as_tensor(place).float(), whole[:, 2:].float())


class Quantised(torch.Tensor):
    """A tensor made of others, as those of torchao are."""

    @staticmethod
    def __new__(cls, values, scale):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=torch.float32)

    def __init__(self, values, scale):
        self.values_of_eight_bits, self.scale = values, scale

    def __tensor_flatten__(self):
        return ["values_of_eight_bits", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


def test_a_quantised_tensor_is_fetched_as_its_parts():
    version = published({"w": Quantised(torch.arange(4, dtype=torch.int8), torch.ones(1))})
    into = Quantised(torch.zeros(4, dtype=torch.int8), torch.zeros(1))
    fetch(version, {"w": into})
    assert (into.values_of_eight_bits.tolist(), into.scale.item()) == ([0, 1, 2, 3], 1)
    assert fetch(version, {"w.scale": np.zeros(1)}, keys="w.scale")["w.scale"] == [1]


def test_boxes_are_copied_from_sources_of_which_one_has_its_bytes_on_a_device():
    whole = torch.arange(48.0).reshape(8, 6)
    sources, payloads = published(*({"w": Slice(whole[at : at + 4], (at, 0), (8, 6))} for at in (0, 4)))
    head, *frames = payloads[0]
    payloads[0] = [head, *(torch.frombuffer(each, dtype=torch.uint8) for each in frames)]
    places = [
        torch.zeros(8, 2),
        torch.zeros(8, 2, dtype=torch.bfloat16),
        np.zeros((8, 2)),
        np.zeros((8, 2), "f4"),
    ]
    calls = []

    def read(copy):
        calls.append(copy)
        copy()

    for place in places:
        target = WeightsTarget("policy", {"w": Slice(place, (0, 3), (8, 6))})
        target.write(7, target.plan(7, sources, HERE), payloads, {0: read})
        assert torch.equal(torch.as_tensor(place).float(), whole[:, 3:5])
    assert len(calls) == len(places)


# -- what went wrong meanwhile --------------------------------------------------------------------


def test_records_are_named_and_nothing_is_written():
    records = np.ones(2, [("x", "f4"), ("y", "i4")])
    into = {"a": np.zeros(3), "records": np.zeros_like(records)}
    with pytest.raises(
        WeightsMismatch, match="'records' cannot be written to in the destination: it is of records"
    ):
        fetch(published({"a": np.ones(3), "records": records}), into)
    assert not into["a"].any()
    raw = fetch(published({"records": records}), {"records": np.zeros(2, "V8")})["records"]
    assert (raw.view(records.dtype) == records).all()


def test_a_tensor_that_lost_its_memory_since_the_plan_is_named_and_nothing_is_written():
    sources, payloads = published(numbers("a", "b"))
    into = zeros("a", "b")
    target = WeightsTarget("policy", into)
    plan = target.plan(7, sources, HERE)
    into["b"].untyped_storage().resize_(0)
    with pytest.raises(
        WeightsMismatch, match="'b' cannot be written to in the destination: it is without memory"
    ):
        target.write(7, plan, payloads)
    assert not into["a"].any()


def test_a_payload_that_is_not_what_was_announced_is_refused_before_the_first_byte():
    sources, _ = published(numbers("a", "b"))
    _, payloads = published({**numbers("a"), "b": torch.ones(2, 3)})
    into = zeros("a", "b")
    target = WeightsTarget("policy", into)
    with pytest.raises(
        WeightsError, match=r"24 bytes of 'b' have come, float32 \(2, 3\), where .* it has \(4, 3\)"
    ):
        target.write(7, target.plan(7, sources, HERE), payloads)
    assert not into["a"].any()


def test_a_plan_is_made_once_for_targets_that_are_alike():
    sources, _ = published(numbers("a"))
    plans = {id(WeightsTarget("policy", zeros("a")).plan(version, sources, HERE)) for version in (1, 2)}
    assert len(plans) == 1
    with pytest.raises(WeightsMismatch):
        WeightsTarget("policy", {"a": torch.zeros(1, 3).expand(4, 3)}).plan(3, sources, HERE)
    assert WeightsTarget("policy", zeros("a"), keys="a").plan(3, sources, HERE).needed == (0,)
