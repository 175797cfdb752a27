"""What has changed from one version to the next, and the next one made of it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.weights import delta
from rlinf_scheduler.weights.delta import CHUNK, WrongDelta, apply, diff
from rlinf_scheduler.weights.held import encode_held

DTYPES = ["u1", "<i2", "<f2", "<f4", "<f8", "<c8", "<c16", "V3", "V12", "S5"]
SIZES = [0, 1, 7, 1000, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5]
NO_LIMIT = 1 << 26


def frames_of(weights):
    return [bytearray(frame) for frame in encode_held("policy", weights)[0].frames()]


def delta_frames(old, new, limit_bytes=NO_LIMIT):
    encoded = diff(old, new, limit_bytes)
    return None if encoded is None else [bytearray(frame) for frame in encoded.frames()]


def applied(frames, base):
    target = [bytearray(b"\xaa" * len(frame)) for frame in base]
    apply(frames, base, target)
    return target


def noise(draw, dtype, size):
    dtype = np.dtype(dtype)
    return draw.integers(0, 256, size * dtype.itemsize, np.uint8).view(dtype)


def changed(draw, array, fraction):
    """The same, but for some bytes of some of its elements."""
    raw = array.copy().view(np.uint8).reshape(len(array), array.itemsize)
    rows = np.flatnonzero(draw.random(len(array)) < fraction)
    flips = draw.integers(1, 256, len(rows), np.uint8)
    raw[rows, draw.integers(0, array.itemsize, len(rows))] ^= flips
    return raw.reshape(-1).view(array.dtype)


@given(
    tensors=st.lists(
        st.tuples(st.sampled_from(DTYPES), st.sampled_from(SIZES), st.sampled_from([0, 1e-3, 0.05, 0.5, 1])),
        max_size=4,
    ),
    seed=st.integers(0, 1 << 32),
)
def test_the_next_version_is_what_has_changed_on_the_one_before(tensors, seed):
    draw = np.random.default_rng(seed)
    before = {str(number): noise(draw, dtype, size) for number, (dtype, size, _) in enumerate(tensors)}
    after = {str(n): changed(draw, before[str(n)], fraction) for n, (_, _, fraction) in enumerate(tensors)}
    old, new = frames_of(before), frames_of(after)
    frames = delta_frames(old, new)
    assert applied(frames, old) == new
    # All of a chunk is never sent with more than what it is.
    assert sum(map(len, frames[2:])) <= sum(map(len, new))


def test_what_is_compared_are_bits():
    nan, other_nan = np.array([0x7FC00000, 0x7FC00001], "<u4").view("<f4")
    before = {"w": np.array([0.0, nan, nan, 1.0], "<f4")}
    after = {"w": np.array([-0.0, nan, other_nan, 1.0], "<f4")}
    frames = delta_frames(frames_of(before), frames_of(after))
    assert np.frombuffer(frames[1], "<u4").tolist()[-1] == 2
    assert applied(frames, frames_of(before)) == frames_of(after)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex128])
def test_tensors_of_torch_by_their_elements(dtype):
    before = {"w": torch.zeros(1000, dtype=dtype), "tied": torch.ones(3)}
    after = {"w": before["w"].clone(), "tied": before["tied"]}
    after["w"][5] = 1
    frames = delta_frames(frames_of(before), frames_of(after))
    assert np.frombuffer(frames[1], "<u4").sum() == 1
    assert applied(frames, frames_of(before)) == frames_of(after)


@pytest.mark.parametrize(
    ("fraction", "most"), [(0.001, 0.003), (0.01, 0.021), (0.1, 0.2), (0.5, 0.6), (1, 1.01)]
)
def test_how_long_it_is(fraction, most):
    draw = np.random.default_rng(1)
    before = noise(draw, "<u2", 1 << 20)
    after = np.where(draw.random(1 << 20) < fraction, before + 1, before).astype("<u2")
    frames = delta_frames(frames_of({"w": before}), frames_of({"w": after}))
    assert sum(map(len, frames)) <= most * after.nbytes


@pytest.mark.parametrize("where", ["everywhere", "in what is not sampled"])
def test_there_is_none_where_it_would_be_too_long(where):
    before = np.zeros(20 * CHUNK, np.uint8)
    after = before.copy()
    after[slice(None) if where == "everywhere" else slice(3 * CHUNK, 4 * CHUNK)] = 1
    old, new = frames_of({"w": before}), frames_of({"w": after})
    assert diff(old, new, CHUNK // 2) is None
    assert diff(old, new, NO_LIMIT) is not None


def two_versions():
    draw = np.random.default_rng(2)
    before = {"a": noise(draw, "<f4", CHUNK + 3), "b": noise(draw, "<f2", 100)}
    return before, {key: changed(draw, array, 0.01) for key, array in before.items()}


def test_another_base_is_found_out():
    before, after = two_versions()
    old, new = frames_of(before), frames_of(after)
    frames = delta_frames(old, new)
    with pytest.raises(WrongDelta, match="checksum"):  # twice
        applied(frames, [*frames_of({**before, "b": before["b"][::-1].copy()})])
    with pytest.raises(WrongDelta, match="other tensors"):
        applied(frames, frames_of({**before, "c": before["b"]}))
    negated = before["a"].copy()
    same = np.flatnonzero(negated == after["a"])[:2]
    negated[same] = -negated[same]  # which sums of words do not see
    with pytest.raises(WrongDelta, match="checksum"):
        applied(frames, frames_of({**before, "a": negated}))


@pytest.mark.parametrize("number", range(4))
@given(data=st.data())
def test_a_damaged_one_is_refused_or_says_the_same(number, data):
    before, after = two_versions()
    old, new = frames_of(before), frames_of(after)
    frames = delta_frames(old, new)
    at = data.draw(st.integers(0, len(frames[number]) - 1))
    if data.draw(st.booleans()):
        frames[number][at] ^= data.draw(st.integers(1, 255))
    else:
        del frames[number][at:]
    try:
        assert applied(frames, old) == new
    except WrongDelta:
        return


def test_checksums_are_of_the_order_of_chunks():
    assert delta._digest([b"a", b"b"]) != delta._digest([b"b", b"a"])
