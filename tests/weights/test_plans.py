"""Who reads which bytes from whom, against a plain reference: assemble everything, then slice."""

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.weights.layout import (
    Manifest,
    Replicate,
    Sharded,
    WeightsLayout,
    layout,
    sharded,
    sliced,
    whole,
)
from rlinf_scheduler.weights.plan import Flow, Rows, Wants, runs
from rlinf_scheduler.weights.sources import BoxCopy, MemoryPlace, Sources
from weight_meshes import layouts, memory, within

SHAPES = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.lists(st.integers(1, 6), max_size=3).map(tuple), min_size=1
)
PLACES = st.builds(MemoryPlace, st.sampled_from(["n0", "n1", "n2"]), st.sampled_from(["", "g0", "g1"]))
HERE = MemoryPlace("n0")


@st.composite
def versions(draw):
    """Layouts of publishers and readers of the same tensors, and where all are."""
    shapes = draw(SHAPES)
    sources, targets = draw(layouts(shapes)), draw(layouts(shapes))
    places = [draw(st.lists(PLACES, min_size=len(each), max_size=len(each))) for each in (sources, targets)]
    model = {
        key: 1000 * number + np.arange(int(np.prod(shape)), dtype="i8").reshape(shape)
        for number, (key, shape) in enumerate(shapes.items())
    }
    return model, sources, targets, places


def carry_out(plan, memories, local):
    """Copy what a plan says; how often each element was written, and how many bytes came from each source."""
    times = {key: np.zeros(each.shape, int) for key, each in local.items()}
    num_bytes = {}
    for read in plan.reads():
        source = memories[read.source][read.key]
        assert source.shape == read.source_shape
        for copy in read.copies:
            there = source[within(copy.source_start, copy.shape)]
            local[read.into][within(copy.target_start, copy.shape)] = there
            times[read.into][within(copy.target_start, copy.shape)] += 1
            num_bytes[read.source] = num_bytes.get(read.source, 0) + there.nbytes
    return times, num_bytes


@given(versions())
def test_a_reader_has_its_shards_of_the_model_and_each_element_was_written_once(version):
    model, held, targets, (places, readers) = version
    sources = Sources(held, places)
    assert not sources.problems
    memories = [memory(each, model) for each in held]
    for number, (target, place) in enumerate(zip(targets, readers, strict=True)):
        wants = Wants(sources, target.manifest)
        assert not wants.problems
        plan = wants.plan(target, place, number, len(targets))
        expected = memory(target, model)
        local = {key: np.full_like(each, -2) for key, each in expected.items()}
        times, num_bytes = carry_out(plan, memories, local)
        for key, each in expected.items():
            assert (local[key] == each).all()
            assert (times[key] == 1).all()
        assert {flow.source: flow.num_bytes for flow in plan.flows} == num_bytes
        assert sum(num_bytes.values()) == sum(each.nbytes for each in expected.values())


@given(versions())
def test_bytes_come_from_the_nearest_that_has_them(version):
    _, held, targets, (places, readers) = version
    sources = Sources(held, places)
    for target, place in zip(targets, readers, strict=True):
        for read in Wants(sources, target.manifest).plan(target, place).reads():
            index = sources.indices[read.key]
            cut = sources.cuts[sources.cut_of[index]]
            (group,) = {group for group in cut.groups if read.source in group and _has(cut, group, read)}
            same_node = [number for number in group if places[number].node == place.node]
            same_device = [n for n in same_node if place.device and places[n].device == place.device]
            assert read.source in (same_device or same_node or group)


def _has(cut, group, read):
    boxes = [box for box, number in zip(cut.boxes, cut.group_of, strict=True) if cut.groups[number] == group]
    part = cut.parts[read.source]
    starts = [piece.local_start for piece in part.pieces if piece.box in boxes]
    return any(all(a <= b for a, b in zip(s, read.copies[0].source_start, strict=True)) for s in starts)


@given(versions())
def test_a_plan_is_the_same_each_time(version):
    _, held, targets, (places, readers) = version
    plans = [
        [
            list(Wants(sources, target.manifest).plan(target, place).reads())
            for target, place in zip(targets, readers, strict=True)
        ]
        for sources in (Sources(held, places), Sources(held, places))
    ]
    assert plans[0] == plans[1]


@given(versions())
def test_runs_of_bytes_are_the_boxes(version):
    _, held, targets, (places, _) = version
    sources = Sources(held, places)
    for target in targets:
        for read in Wants(sources, target.manifest).plan(target, HERE).reads():
            here = target.part(target.manifest.keys.index(read.into)).local_shape
            for copy in read.copies:
                expected = np.zeros(here, "i4")
                there = np.arange(int(np.prod(read.source_shape)), dtype="i4").reshape(read.source_shape) + 1
                expected[within(copy.target_start, copy.shape)] = there[within(copy.source_start, copy.shape)]
                assert _copied(there, here, runs(copy, read.source_shape, here, 4)) == expected.tobytes()


def _copied(source, shape, run):
    there, here = source.tobytes(), bytearray(4 * int(np.prod(shape)))
    for each in itertools.product(*map(range, run.counts)):
        at = run.source_offset + sum(a * b for a, b in zip(each, run.source_strides, strict=True))
        to = run.target_offset + sum(a * b for a, b in zip(each, run.target_strides, strict=True))
        here[to : to + run.num_bytes] = there[at : at + run.num_bytes]
    return bytes(here)


def test_rows_that_lie_together_are_one_run():
    assert runs(BoxCopy((4, 0), (0, 0), (2, 6)), (8, 6), (2, 6), 2) == (48, 0, 24, (), (), ())
    assert runs(BoxCopy((0, 2), (0, 0), (8, 3)), (8, 6), (8, 3), 2) == (4, 0, 6, (8,), (12,), (6,))
    assert runs(BoxCopy((), (), ()), (), (), 8) == (0, 0, 8, (), (), ())


def mesh(count, cuts):
    """The layouts of so many processes in a row, by key: shape and placement."""
    return [
        layout(
            (key, "float32", sharded(shape, (count,), (each,), [cut])) for key, (shape, cut) in cuts.items()
        )
        for each in range(count)
    ]


def test_replicas_share_the_work_of_one_reader_and_of_many():
    cuts = {f"layer.{number}": ((64, 64), Replicate()) for number in range(64)}
    sources = Sources(mesh(4, cuts), [MemoryPlace(f"s{n}") for n in range(4)])
    one = Wants(sources, sources.layouts[0].manifest)
    flows = one.plan(sources.layouts[0], HERE).flows
    assert [flow.num_bytes for flow in flows] == [16 << 14] * 4
    sent = dict.fromkeys(range(4), 0)
    for reader in range(3):
        for flow in one.plan(sources.layouts[0], HERE, reader, 3).flows:
            sent[flow.source] += flow.num_bytes
    assert max(sent.values()) <= 1.05 * min(sent.values())


def test_who_has_the_same_device_gives_before_who_is_on_the_node_before_others():
    held = [layout([("w", "float32", whole((4,)))])] * 3
    places = [MemoryPlace("n1"), MemoryPlace("n0", "g1"), MemoryPlace("n0", "g0")]
    wants = Wants(Sources(held, places), held[0].manifest)
    assert wants.plan(held[0], MemoryPlace("n0", "g0")).flows == (Flow(2, 16, "device"),)
    assert {flow.way for flow in wants.plan(held[0], MemoryPlace("n0", "g7")).flows} == {"node"}
    assert wants.plan(held[0], MemoryPlace("n9")).flows[0].way == "network"


def test_a_tensor_that_is_not_covered_says_what_nobody_has():
    held = mesh(4, {"w": ((8, 2), Sharded(0)), "b": ((4,), Replicate())})
    (problem,) = Sources([held[0], held[1], held[3]], [HERE] * 3).problems
    assert problem == ("w", "nobody has [4:6, 0:2]")


def test_shards_that_overlap_name_who_has_what():
    held = [
        layout([("w", "float32", sliced((8,), (0,), (5,)))]),
        layout([("w", "float32", sliced((8,), (4,), (4,)))]),
    ]
    (problem,) = Sources(held, [HERE] * 2).problems
    assert problem.text == "shards overlap and are not the same: [0:5] of process 0 and [4:8] of process 1"


def test_processes_that_say_other_things_of_a_tensor_are_named():
    held = [layout([("w", "float32", whole((8,)))]), layout([("w", "bfloat16", whole((8,)))])]
    assert Sources(held, [HERE] * 2).problems[0].text == (
        "it is bfloat16 (8,) in process 1, and float32 (8,) in others"
    )


def test_missing_and_surplus_tensors_are_told():
    sources = Sources(mesh(2, {"a": ((4,), Sharded(0)), "b": ((4,), Sharded(0))}), [HERE] * 2)
    target = layout([("a", "float32", whole((4,))), ("c", "float32", whole((4,)))])
    wants = Wants(sources, target.manifest)
    assert wants.problems == [("c", "nobody publishes 'c'")]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_fused_tensor_comes_from_those_that_it_is_made_of(count):
    shapes = {"q": (6, 4), "k": (2, 4), "v": (2, 4)}
    model = {key: np.arange(np.prod(s), dtype="f4").reshape(s) + ord(key) for key, s in shapes.items()}
    held = mesh(2, {key: (shape, Sharded(0)) for key, shape in shapes.items()})
    sources = Sources(held, [HERE] * 2)
    fused = {"qkv": np.concatenate([model["q"], model["k"], model["v"]])}
    for target in mesh(count, {"qkv": ((10, 4), Sharded(1))}):
        wants = Wants(sources, target.manifest, {"qkv": ["q", "k", "v"]})
        local = {"qkv": np.zeros(target.part(0).local_shape, "f4")}
        times, _ = carry_out(wants.plan(target, HERE), [memory(each, model) for each in held], local)
        assert (times["qkv"] == 1).all()
        assert (local["qkv"] == memory(target, fused)["qkv"]).all()


def test_a_tensor_may_be_rows_of_a_published_one_and_have_another_name():
    model = {"gate_up": np.arange(24, dtype="f4").reshape(8, 3)}
    held = mesh(3, {"gate_up": ((8, 3), Sharded(0))})
    target = layout([("up", "float32", whole((4, 3))), ("all", "float32", whole((8, 3)))])
    origins = {"up": Rows("gate_up", 4), "all": "gate_up"}
    wants = Wants(Sources(held, [HERE] * 3), target.manifest, origins)
    local = {"up": np.zeros((4, 3), "f4"), "all": np.zeros((8, 3), "f4")}
    carry_out(wants.plan(target, HERE), [memory(each, model) for each in held], local)
    assert (local["up"] == model["gate_up"][4:]).all()
    assert (local["all"] == model["gate_up"]).all()


@pytest.mark.parametrize(
    ("origin", "text"),
    [
        (["a", "b"], "it has shape (9, 2), and 'a' and 'b' 8 rows"),
        (Rows("a", 2, 9), "there are no rows 2 to 9 of 'a', which has shape (4, 2)"),
        ("a", "it has shape (9, 2), and 'a' 4 rows"),
        (["a", "narrow"], "it has shape (9, 2), and 'narrow' (5, 1)"),
        (["a", "nothing"], "nobody publishes 'nothing'"),
    ],
)
def test_what_a_tensor_cannot_be_made_of_is_told(origin, text):
    cuts = {"a": ((4, 2), Sharded(0)), "b": ((4, 2), Sharded(0)), "narrow": ((5, 1), Sharded(0))}
    target = layout([("w", "float32", whole((9, 2)))])
    wants = Wants(Sources(mesh(2, cuts), [HERE] * 2), target.manifest, {"w": origin})
    assert wants.problems == [("w", text)]


def test_ten_thousand_tensors_of_512_processes_are_planned_for_512_readers_in_seconds():
    count, hidden = 512, 8192
    columns, rows, everywhere = Sharded(1), Sharded(0), Replicate()
    kinds = {
        "q": ((hidden, hidden), rows),
        "kv": ((2048, hidden), rows),
        "o": ((hidden, hidden), columns),
        "up": ((28672, hidden), rows),
        "down": ((hidden, 28672), columns),
        "norm": ((hidden,), everywhere),
    }
    of_kind = list(range(len(kinds))) * 1667
    names = [f"layers.{number // len(kinds)}.{kind}" for number, kind in enumerate(of_kind)]
    shapes = [list(kinds.values())[kind][0] for kind in of_kind]
    manifest = Manifest(tuple(names), ("bfloat16",) * len(names), tuple(shapes))

    def held(cut_of):
        for each in range(count):
            parts = [sharded(shape, (count,), (each,), [cut_of(cut)]) for shape, cut in kinds.values()]
            yield WeightsLayout(manifest, tuple(parts), tuple(of_kind))

    publishers, readers = list(held(lambda _cut: rows)), list(held(lambda cut: cut))
    began = time.process_time()
    sources = Sources(publishers, [MemoryPlace(f"s{number // 8}") for number in range(count)])
    wants = Wants(sources, manifest)
    plans = [
        wants.plan(target, MemoryPlace(f"r{number // 8}"), number, count)
        for number, target in enumerate(readers)
    ]
    took_s = time.process_time() - began
    assert not sources.problems
    model = sum(2 * math.prod(shape) for shape in shapes)
    norms = sum(2 * hidden for shape in shapes if shape == (hidden,))
    assert sum(flow.num_bytes for plan in plans for flow in plan.flows) == model + (count - 1) * norms
    assert took_s < 20
