"""What a worker has on its device in its turns only: it is brought there when they begin, and back when they end."""

from __future__ import annotations

import importlib
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, Protocol

from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.errors import ConfigError

logger = Reporter(__name__)
_Tensor = Any  # torch.Tensor; torch is loaded by those who use it only

_TAKES = "device_lock(offload=...) takes modules, optimizers and tensors of torch, and dicts, lists and tuples of them"


class OffloadDevice(Protocol):
    """The memory of a device, and host memory beside it."""

    def is_there(self, tensor: _Tensor) -> bool:
        """Whether a tensor is on the device."""

    def is_in_host(self, tensor: _Tensor) -> bool:
        """Whether a tensor is in host memory."""

    def allocate(self, size_bytes: int) -> _Tensor:
        """Memory of the device, uint8 of shape (size_bytes,)."""

    def allocate_in_host(self, size_bytes: int) -> _Tensor:
        """Host memory, uint8 of shape (size_bytes,)."""

    def settle(self) -> None:
        """Return when the device has done all that it was asked."""

    def trim(self) -> None:
        """Give back to other processes what is kept of the device and not used."""


class TorchMemory:
    """The memory of a device of torch's, and pinned host memory.

    Args:
        device: the device, with its index.
        platform: the part of torch that is about such devices (`torch.cuda`).
    """

    def __init__(self, device: Any, platform: Any) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._device = device
        self._platform = platform
        self._pins = True

    def is_there(self, tensor: _Tensor) -> bool:
        """Whether a tensor is on the device."""
        return bool(tensor.device == self._device)

    def is_in_host(self, tensor: _Tensor) -> bool:
        """Whether a tensor is in host memory."""
        return bool(tensor.is_cpu)

    def allocate(self, size_bytes: int) -> _Tensor:
        """Memory of the device, uint8 of shape (size_bytes,)."""
        return self._torch.empty(size_bytes, dtype=self._torch.uint8, device=self._device)

    def allocate_in_host(self, size_bytes: int) -> _Tensor:
        """Host memory, uint8 of shape (size_bytes,)."""
        if self._pins:
            try:
                return self._torch.empty(size_bytes, dtype=self._torch.uint8, pin_memory=True)
            except RuntimeError as error:
                self._pins = False
                logger.warning(
                    "no pinned memory for %d MiB (%s): what is offloaded from %s goes to pageable memory, more slowly",
                    -(-size_bytes >> 20),
                    error,
                    self._device,
                )
        return self._torch.empty(size_bytes, dtype=self._torch.uint8)

    def settle(self) -> None:
        """Return when the device has done all that it was asked."""
        self._platform.synchronize(self._device)

    def trim(self) -> None:
        """Give back to other processes what is kept of the device and not used."""
        self._platform.empty_cache()


class Offload:
    """Modules, optimizers and tensors that change places: the same objects, whose memory is elsewhere.

    What shares memory before does so afterwards. A move is whole, or it is not made: then everything is where it was.
    Of what is in shards, this process's shard is moved; a module of FSDP2 that is gathered is in shards again then.

    Args:
        things: modules with their gradients and buffers, optimizers with their state, tensors, DTensors, and dicts,
            lists and tuples of them.
        memory: of the device.

    Raises:
        ConfigError: there is something else among them.
    """

    def __init__(self, things: Sequence[object], memory: OffloadDevice) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._things = things
        self._memory = memory
        list(self._tensors())

    def bring(self) -> None:
        """Move what is in host memory to the device."""
        memory = self._memory
        self._move(memory.is_in_host, memory.allocate)

    def take_away(self) -> None:
        """Move what is on the device to host memory."""
        memory = self._memory
        self._move(memory.is_there, memory.allocate_in_host)
        memory.trim()

    def _move(self, moves: Callable[[_Tensor], bool], allocate: Callable[[int], _Tensor]) -> None:
        for module in self._fsdp_modules():
            module.reshard()
        shards = {id(whole): whole for whole in self._tensors() if self._is_sharded(whole)}.values()
        held = (self._held(tensor) for tensor in chain(self._tensors(), self._padded()))
        moving = list({id(tensor): tensor for tensor in held if moves(tensor)}.values())
        # Other streams, of other threads perhaps, may still write to it.
        self._memory.settle()
        copies: dict[tuple[int, int], _Tensor] = {}
        for tensor in moving:
            memory = tensor.untyped_storage()
            if _key(memory) not in copies:
                whole = self._torch.empty(0, dtype=self._torch.uint8, device=tensor.device).set_(memory)
                copies[_key(memory)] = allocate(len(whole)).copy_(whole, non_blocking=True)
        self._memory.settle()
        made = [self._in(copies[_key(tensor.untyped_storage())], tensor) for tensor in moving]
        there = dict(zip(map(id, moving), made, strict=True))
        for whole in shards:  # it says itself on which device it is
            if id(whole._local_tensor) in there:
                moving.append(whole)
                made.append(type(whole)(there[id(whole._local_tensor)], whole._spec, requires_grad=False))
        # All at once: no interruption comes between two of them, of which one would be elsewhere than what it shares
        # its memory with, and not share it any more when both have come to the same place again.
        deque(map(setattr, moving, repeat("data"), made), maxlen=0)

    def _in(self, copy: _Tensor, tensor: _Tensor) -> _Tensor:
        """A tensor like another one, in a copy of that one's memory."""
        made = self._torch.empty(0, dtype=tensor.dtype, device=copy.device)
        return made.set_(copy.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())

    # -- what is in shards -----------------------------------------------------------------------

    @staticmethod
    def _is_sharded(tensor: object) -> bool:
        loaded = sys.modules.get("torch.distributed.tensor")
        return loaded is not None and isinstance(tensor, loaded.DTensor)

    def _held(self, tensor: _Tensor) -> _Tensor:
        """What this process has of a tensor."""
        return tensor._local_tensor if self._is_sharded(tensor) else tensor

    def _fsdp_modules(self) -> Iterator[Any]:
        fsdp: Any = sys.modules.get("torch.distributed.fsdp")
        if fsdp is not None:
            for module in self._modules_of(self._things):
                if isinstance(module, fsdp.FSDPModule):
                    yield module

    def _modules_of(self, thing: object) -> Iterator[Any]:
        if isinstance(thing, self._torch.nn.Module):
            yield from thing.modules()
        elif isinstance(thing, Mapping | list | tuple):
            for each in thing.values() if isinstance(thing, Mapping) else thing:
                yield from self._modules_of(each)

    def _padded(self) -> Iterator[_Tensor]:
        """The memory in which FSDP2 has the shards, as large as the first rank's, and from which it gathers."""
        for module in self._fsdp_modules():
            state = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
            for parameter in chain.from_iterable(group.fsdp_params for group in groups if group):
                if type(parameter._sharded_param_data) is self._torch.Tensor:
                    yield parameter._sharded_param_data

    # -- what there is ---------------------------------------------------------------------------

    def _tensors(self) -> Iterator[_Tensor]:
        for thing in self._things:
            for tensor in self._of(thing):
                yield tensor
                if tensor.is_leaf and tensor.grad is not None:
                    yield tensor.grad

    def _of(self, thing: object) -> Iterator[_Tensor]:
        torch = self._torch
        if isinstance(thing, torch.Tensor):
            yield self._checked(thing)
        elif isinstance(thing, torch.nn.Module):
            yield from self._each([*thing.parameters(), *thing.buffers()])
        elif isinstance(thing, torch.optim.Optimizer):
            for group in thing.param_groups:
                yield from self._each(group["params"])
                yield from self._state_of(thing, group)
        elif isinstance(thing, Mapping):
            yield from self._each(thing.values())
        elif isinstance(thing, list | tuple):
            yield from self._each(thing)
        else:
            raise ConfigError(f"{_TAKES}, not {type(thing).__name__}")

    def _each(self, things: Iterable[object]) -> Iterator[_Tensor]:
        for thing in things:
            yield from self._of(thing)

    def _state_of(self, optimizer: Any, group: Mapping[str, Any]) -> Iterator[_Tensor]:
        # Optimizers count their steps in host memory, unless they were told to do all on the device.
        counts_there = group.get("capturable") or group.get("fused")
        for parameter in group["params"]:
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, self._torch.Tensor) and (key != "step" or counts_there):
                    yield self._checked(value)

    def _checked(self, whole: _Tensor) -> _Tensor:
        torch, tensor = self._torch, self._held(whole)
        is_plain = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        if (
            not is_plain
            or tensor.layout is not torch.strided
            or tensor.is_quantized
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            raise ConfigError(
                f"{_TAKES}; this {type(tensor).__name__} of shape {tuple(tensor.shape)} is more than a view of memory",
                hint="bring it to the device, and back, by its own `.to(...)` in the block",
            )
        return whole


def _key(storage: Any) -> tuple[int, int]:
    return storage.data_ptr(), storage.nbytes()
