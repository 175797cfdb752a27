"""What the driver and the codec make of a real device, in one process."""

import re
import subprocess

import pytest
import torch

from rlinf_scheduler.comm.codec import decode, encode
from rlinf_scheduler.devices.cuda_driver import CudaDriver, cuda_driver
from rlinf_scheduler.devices.driver import DeviceUnusable
from rlinf_scheduler.hardware.devices import list_devices
from rlinf_scheduler.hardware.tools import CUDA_VIEW
from rlinf_scheduler.hardware.vendors import find_devices

pytestmark = pytest.mark.gpu
MIB = 1 << 20
DTYPES = sorted(
    {
        value
        for value in vars(torch).values()
        if isinstance(value, torch.dtype)
        and not re.match(r"torch\.(q|u?int[1-7]$|bits)", str(value))
    },
    key=str,
)  # fmt: skip


@pytest.fixture
def driver():
    found = cuda_driver()
    assert isinstance(found, CudaDriver)
    return found


def bits_on_device(dtype, num_bytes=1 << 16):
    """A tensor of random bits of that dtype on the device."""
    bits = torch.randint(
        0, 2 if dtype == torch.bool else 256, (num_bytes,), dtype=torch.uint8, device="cuda:0"
    )
    return bits.view(dtype)


def same_bits(one, other):
    return torch.equal(one.contiguous().view(torch.uint8).cpu(), other.contiguous().view(torch.uint8).cpu())


def test_the_vendors_tool_torch_and_the_driver_tell_of_the_same_devices(driver):
    told = subprocess.run(
        ["nvidia-smi", "--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits"],
        stdout=subprocess.PIPE,
        check=True,
    )
    lines = [line.split(", ") for line in told.stdout.decode().splitlines()]
    found = find_devices("NVIDIA")
    assert [device.uuid for device in found] == [uuid for uuid, _ in lines]
    assert [device.memory_bytes for device in found] == [int(mib) * MIB for _, mib in lines]
    seen = list_devices(CUDA_VIEW)
    assert len(seen) == torch.cuda.device_count()
    for index, device in enumerate(seen):
        assert driver.device_of(torch.empty(1, device=f"cuda:{index}")) == device.uuid
        assert str(torch.cuda.get_device_properties(index).uuid) in device.uuid
    assert driver.device_of(torch.empty(1)) == ""


def test_every_dtype_goes_through_the_codec_bit_by_bit():
    assert len(DTYPES) > 15
    given = {str(dtype): bits_on_device(dtype) for dtype in DTYPES}
    encoded = encode(given)
    came = decode(encoded.head, encoded.buffers)
    for name, tensor in given.items():
        assert came[name].device == tensor.device, name
        assert came[name].dtype == tensor.dtype
        assert same_bits(came[name], tensor), name


def test_strided_tied_and_conjugated_tensors_go_through_the_codec():
    matrix = torch.randn(300, 200, device="cuda:0")
    complex_ones = torch.randn(50, 50, dtype=torch.complex64, device="cuda:0")
    encoded = encode([matrix, matrix.t(), matrix[::2, 3:7], complex_ones.conj(), torch.nn.Parameter(matrix)])
    same, turned, some, conjugated, parameter = decode(encoded.head, encoded.buffers)
    assert torch.equal(turned, matrix.t())
    assert torch.equal(some, matrix[::2, 3:7])
    assert torch.equal(conjugated, complex_ones.conj())
    assert torch.equal(parameter, matrix)
    assert parameter.requires_grad
    same.zero_()
    assert not turned.any(), "what shares memory still does"


def test_a_bucket_is_memory_of_the_device_that_torch_copies_from_and_to_and_that_comes_back(driver):
    device = driver.device_of(torch.empty(1, device="cuda:0"))
    given, into = torch.randn(16 * MIB, device="cuda:0"), torch.empty(16 * MIB, device="cuda:0")
    assert not torch.equal(given, into), "what torch wants for this it has taken now"
    at_first, total_bytes = driver.free_bytes(device)
    assert 0 < at_first <= total_bytes
    before = None
    for _ in range(3):
        memory = driver.allocate(device, 64 * MIB)
        assert driver.free_bytes(device)[0] <= at_first - 64 * MIB
        assert len(driver.handle(memory)) == 64
        assert memory.bytes.is_cuda
        assert memory.bytes.shape == (64 * MIB,)
        into.zero_()
        with driver.copying(device, driver.mark(device)):
            memory.bytes.view(torch.float32).copy_(given, non_blocking=True)
        with driver.copying(device, driver.mark(device)):
            into.copy_(memory.bytes.view(torch.float32), non_blocking=True)
        assert torch.equal(given, into)
        memory.bytes = None
        driver.free(memory)
        free_bytes, _ = driver.free_bytes(device)
        # The first copy makes the stream, and CUDA what it wants for it.
        assert free_bytes >= at_first - 16 * MIB
        before = before or free_bytes
        assert free_bytes >= before - MIB


def test_a_copy_comes_after_what_was_marked(driver):
    device = driver.device_of(torch.empty(1, device="cuda:0"))
    memory = driver.allocate(device, 64 * MIB)
    given = torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda:0")
    # Cycles: a tenth of a second, in which nothing else happens on this stream.
    torch.cuda._sleep(200_000_000)
    given.fill_(7)
    with driver.copying(device, driver.mark(device)):
        memory.bytes.copy_(given, non_blocking=True)
    assert bool((memory.bytes == 7).all())
    memory.bytes = None
    driver.free(memory)


def test_what_cannot_be_opened_or_had_is_said_in_the_drivers_words(driver):
    device = driver.device_of(torch.empty(1, device="cuda:0"))
    with pytest.raises(DeviceUnusable, match="cuIpcOpenMemHandle says CUDA_ERROR"):
        driver.open(device, MIB, bytes(64))
    with pytest.raises(DeviceUnusable, match="has 64 bytes, not 3"):
        driver.open(device, MIB, b"abc")
    with pytest.raises(DeviceUnusable, match="cuMemAlloc says CUDA_ERROR_OUT_OF_MEMORY"):
        driver.allocate(device, 1 << 50)
    with pytest.raises(DeviceUnusable, match="does not see the device GPU-none"):
        driver.free_bytes("GPU-none")
