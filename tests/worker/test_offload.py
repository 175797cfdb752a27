"""What a worker has on its device in its turns only changes places, and stays what it is."""

import copy

import pytest
import torch

from alarms import interrupted_at
from rlinf.scheduler import Worker
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.host.timing import recording
from rlinf_scheduler.worker import offload
from rlinf_scheduler.worker.device_lock import DeviceLock
from rlinf_scheduler.worker.offload import Offload
from small_device import SmallDevice


@pytest.fixture
def device():
    return SmallDevice()


def made():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def train(model, optimizer):
    optimizer.zero_grad()
    model(torch.arange(32.0).view(4, 8)).square().sum().backward()
    optimizer.step()


def test_a_model_that_is_moved_between_its_steps_learns_what_another_one_learns(device):
    model, optimizer = made()
    same, its_optimizer = made()
    total_bytes, before = device.free_bytes, [id(each) for each in model.parameters()]
    for _ in range(3):
        with DeviceLock(None, [], offload=Offload([model, optimizer], device)):
            assert all(device.is_there(each) for each in model.state_dict().values() if each.numel())
            train(model, optimizer)
            # The gradients of this step, and the state of the first, were made beside it.
        assert device.free_bytes == total_bytes, "all of it was given back"
        assert all(device.is_in_host(each) for each in model.state_dict().values())
        train(same, its_optimizer)
        for one, other in zip(model.state_dict().values(), same.state_dict().values(), strict=True):
            assert torch.equal(one, other)
    assert [id(each) for each in model.parameters()] == before
    states = zip(optimizer.state.values(), its_optimizer.state.values(), strict=True)
    assert all(torch.equal(one[key], other[key]) for one, other in states for key in other)


def test_gradients_and_the_state_of_an_optimizer_move_and_its_count_of_steps_stays(device):
    model, optimizer = made()
    train(model, optimizer)
    moved = Offload([optimizer], device)
    moved.bring()
    for parameter, state in optimizer.state.items():
        assert device.is_there(parameter)
        assert device.is_there(parameter.grad)
        assert device.is_there(state["exp_avg"])
        assert device.is_there(state["exp_avg_sq"])
        assert device.is_in_host(state["step"]), "AdamW asks for that"
    optimizer.param_groups[0]["capturable"] = True
    moved.bring()
    assert all(device.is_there(state["step"]) for state in optimizer.state.values())


def test_what_shares_memory_still_does(device):
    whole = torch.arange(100.0)
    first, turned = whole[:40], whole.view(10, 10).t()
    tied = torch.nn.Linear(4, 4)
    other = torch.nn.Linear(4, 4)
    other.weight = tied.weight
    moved = Offload([{"all": whole, "views": [first, (turned,)]}, tied, other], device)
    for move in (moved.bring, moved.take_away):
        move()
        whole[39] += 1000
        assert first[39] == turned[9, 3] == whole[39]
        assert turned.stride() == (1, 10)
        assert other.weight is tied.weight
    assert torch.equal(whole.view(10, 10).t(), turned)
    assert whole.sum() == sum(range(100)) + 2000


def test_what_shares_memory_still_does_wherever_a_move_was_interrupted():
    for number in range(10_000):
        memory, device = torch.arange(8.0), SmallDevice()
        halves = memory[:4], memory[4:]
        moved = Offload(halves, device)
        if not interrupted_at(number, moved.bring, [offload.__file__]):
            break
        assert len({device.is_there(half) for half in halves}) == 1, (
            f"interrupted at its instruction {number}"
        )
        moved.bring()
        first, second = halves
        assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert number > 100


def test_dtypes_and_empty_tensors_come_back_bit_by_bit(device):
    dtypes = torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn
    given = [torch.arange(7.0).to(dtype) for dtype in dtypes] + [torch.empty(0, 3)]
    before = copy.deepcopy(given)
    moved = Offload(given, device)
    moved.bring()
    moved.take_away()
    for one, other in zip(given, before, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        size_bytes = one.numel() * one.itemsize
        assert bytes(one.untyped_storage())[:size_bytes] == bytes(other.untyped_storage())


def test_what_does_not_fit_stays_where_it_is_and_gives_the_turn_back():
    device, (model, _) = SmallDevice(700), made()
    lock = DeviceLock(None, [], offload=Offload([model], device))
    with pytest.raises(MemoryError):
        lock.__enter__()
    assert all(device.is_in_host(each) for each in model.state_dict().values())
    assert device.free_bytes == 700
    device.free_bytes = 1 << 20
    with lock:
        assert all(device.is_there(each) for each in model.parameters())


def test_a_block_that_fails_takes_away_what_it_brought(device):
    model, _ = made()
    with pytest.raises(LookupError), DeviceLock(None, [], offload=Offload([model], device)):
        raise LookupError
    assert device.free_bytes == 1 << 20


def test_the_timers_say_what_it_takes(device):
    durations = {}
    with recording(durations, "train", "driver"), DeviceLock(None, [], offload=Offload([made()[0]], device)):
        pass
    assert set(durations) == {"onload", "offload"}
    assert all(seconds > 0 for seconds in durations.values())


def test_what_cannot_be_moved_is_an_error_at_once(device):
    with pytest.raises(ConfigError, match=r"takes modules, optimizers and tensors .*, not function"):
        Offload([[made]], device)
    with pytest.raises(ConfigError, match=r"this Tensor of shape \(2, 2\) is more than a view") as caught:
        Offload([torch.eye(2).to_sparse()], device)
    assert "by its own `.to(...)`" in caught.value.hint


def test_a_worker_without_a_device_moves_nothing():
    model, _ = made()
    before = model[0].weight.data_ptr()
    with Worker().device_lock(offload=[model]):
        assert model[0].weight.data_ptr() == before
    assert model[0].weight.data_ptr() == before
