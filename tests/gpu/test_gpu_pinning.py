"""Items that a real device copies by itself, out of shared memory."""

import pytest
import torch

from pinned_home import Home
from rlinf_scheduler.devices.cuda_driver import cuda_driver

pytestmark = pytest.mark.gpu
MIB = 1 << 20


@pytest.fixture
def home(new_messenger):
    torch.empty(1, device="cuda:0")
    messenger = new_messenger("actor:0", arena_limit_bytes=256 * MIB)
    return Home(messenger, cuda_driver(), 128 * MIB)


def tensor_of(home, fill, mib=16):
    return torch.from_numpy(home.passed(mib * MIB, fill))


def test_what_arrives_is_pinned_and_small_items_are_not(home):
    assert tensor_of(home, 1).is_pinned()
    assert not torch.from_numpy(home.passed(MIB // 2, 1)).is_pinned()


def test_a_device_copies_what_came_however_often_blocks_are_filled_again_and_pages_are_given_back(home):
    came = []
    for number in range(60):
        came.append(tensor_of(home, number, mib=(8, 16, 24)[number % 3]).to("cuda:0", non_blocking=True))
        if number % 5 == 0:
            home.settled()
            home.trim()
    torch.cuda.synchronize()
    for number, tensor in enumerate(came):
        assert bool((tensor == number).all()), number


def test_a_block_is_not_filled_again_before_a_copy_that_nobody_waits_for(home):
    into = torch.empty(20, 16 * MIB, dtype=torch.uint8, device="cuda:0")
    for number in range(20):
        # Cycles: some milliseconds, in which the copy waits and its source is dropped.
        torch.cuda._sleep(20_000_000)
        into[number].copy_(tensor_of(home, number), non_blocking=True)
    torch.cuda.synchronize()
    for number in range(20):
        assert bool((into[number] == number).all()), number


def test_what_is_unpinned_is_pageable_again(home):
    tensor = tensor_of(home, 1)
    address = tensor.data_ptr()
    del tensor
    home.settled()
    home.trim()
    home.settled()
    assert not len(home.blocks._pins)
    again = tensor_of(home, 2)
    assert again.is_pinned()
    assert again.data_ptr() == address
