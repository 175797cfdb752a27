"""vLLM's side of an update: each of its workers is a member of the job, and takes the weights from there itself.

Weights are held first, all of them on this machine, and tried on a model without memory. Only what will fit replaces
anything: vLLM's layerwise reload writes over the weights in use, and has no way back.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.meta import get_numel_loaded
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.utils.torch_utils import set_default_torch_dtype

from rlinf.scheduler import Worker
from rlinf_scheduler.errors import WeightsMismatch, WeightsReplaced

_LONGEST = 400  # vLLM's errors may name all that a model has
_EXPERT = re.compile(r"(.*\.experts\.)(\d+)(\..*)")


@dataclass
class JobInit(WeightTransferInitInfo):
    """How a worker joins the job: within so many seconds."""

    timeout_s: float = 60.0


@dataclass
class JobUpdate(WeightTransferUpdateInfo):
    """Which version is taken, the same one by all workers."""

    name: str
    version: int
    timeout_s: float | None = 600.0


class JobWeights(WeightTransferEngine[JobInit, JobUpdate]):
    """The weights of a job, in one worker of vLLM.

    vLLM's four phases are: `init` joins the job; `start` does nothing; `update` holds a version and loads it; `finish`
    does nothing. So an update that fails to come leaves the model as it was. Where there are several workers all of
    them hold before the first of them loads: `HoldingWorker`.
    """

    init_info_cls = JobInit
    update_info_cls = JobUpdate

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._worker: Worker | None = None
        self._held: tuple[tuple[str, int], Any] | None = None
        self._tried: object = None

    def init_transfer_engine(self, init_info: JobInit) -> None:
        """Join the job below the rank that started vLLM, once."""
        if self._worker is None:
            Worker.join_parent(world_size=self.parallel_config.world_size, timeout_s=init_info.timeout_s)
            self._worker = Worker()

    def start_weight_update(self) -> None:
        """Do nothing: layers are taken apart when all that replaces them is here."""

    def finish_weight_update(self) -> None:
        """Do nothing: the update has finished its layers itself."""

    def hold(self, update: JobUpdate) -> None:
        """Take all of a version to this machine, and try whether the model can load it.

        Raises:
            WeightsMismatch: it cannot.
            CommError: it does not come.
        """
        self.drop()
        self.init_transfer_engine(JobInit())
        assert self._worker is not None  # noqa: S101 - for the type checker
        take = functools.partial(self._worker.stream_weights, update.name, version=update.version)
        try:
            stream = take(timeout_s=update.timeout_s)
        except WeightsReplaced:  # the rank was told, and names a version of the present launch
            stream = take(timeout_s=update.timeout_s)
        try:
            self._try(update, stream.shapes)
        except BaseException:
            stream.close()
            raise
        self._held = (update.name, update.version), stream

    def _try(self, update: JobUpdate, shapes: Mapping[str, Sequence[int]]) -> None:
        """Load tensors of these shapes into a model without memory; the same shapes once."""
        if shapes == self._tried:
            return
        model = self._without_memory()
        num_loaded = _counted(model)
        key = ""

        def weights() -> Iterator[tuple[str, torch.Tensor]]:
            nonlocal key
            for key, shape in shapes.items():
                yield key, torch.empty(*shape, device="meta")

        try:
            loaded = model.load_weights(weights())
        except Exception as error:
            unfit = f"vLLM cannot load {_shapes_at(key, shapes, model)}: {type(error).__name__}: {error}"
            unfit = textwrap.shorten(unfit, _LONGEST, placeholder=" ...")
            raise WeightsMismatch(update.name, update.version, unfit=[unfit]) from error
        parameters = dict(model.named_parameters())
        short = {name for name, number in num_loaded.items() if 0 < number < parameters[name].numel()}
        missing = (parameters.keys() - loaded) | _lacking(model, shapes, short)
        if missing:
            raise WeightsMismatch(update.name, update.version, missing=sorted(missing))
        self._tried = shapes

    def _without_memory(self) -> torch.nn.Module:
        config = copy.copy(self.vllm_config)
        # Where each layer of attention has its one place, by its name.
        config.compilation_config = copy.copy(config.compilation_config)
        config.compilation_config.static_forward_context = {}
        config.compilation_config.static_all_moe_layers = []
        with torch.device("meta"), set_default_torch_dtype(self.model_config.dtype):
            return initialize_model(config, model_config=self.model_config)

    def drop(self) -> None:
        """Hold nothing any more."""
        if self._held is not None:
            self._held[1].close()
        self._held = None

    def receive_weights(self, update_info: JobUpdate) -> None:
        """Load a version, which is held first if it is not yet."""
        if self._held is None or self._held[0] != (update_info.name, update_info.version):
            self.hold(update_info)
        assert self._held is not None  # noqa: S101 - for the type checker
        try:
            initialize_layerwise_reload(self.model)
            self.model.load_weights(self._held[1])
            finalize_layerwise_reload(self.model, self.model_config)
        finally:
            self.drop()

    def shutdown(self) -> None:
        """Hold nothing any more; the process leaves the job when it ends."""
        self.drop()


def _shapes_at(key: str, shapes: Mapping[str, Sequence[int]], model: torch.nn.Module) -> str:
    """Return how a tensor was published, and what the model has under its name, which may be a part of it."""
    if key not in shapes:
        return "them"
    own = dict(model.named_parameters()).get(key)
    expected = "" if own is None else f", where it has {tuple(own.shape)}"
    return f"'{key}' of shape {tuple(shapes[key])}{expected}"


def _counted(model: torch.nn.Module) -> dict[str, int]:
    """Return how many elements of each parameter have been loaded; it goes on counting."""
    num_loaded = dict[str, int]()

    def count(name: str, parameter: Any) -> None:
        load = getattr(parameter, "weight_loader", default_weight_loader)
        signature = inspect.signature(load)

        @functools.wraps(load)
        def loading(*args: Any, **kwargs: Any) -> Any:
            number, result = get_numel_loaded(load, signature.bind(*args, **kwargs))
            num_loaded[name] = num_loaded.get(name, 0) + number
            return result

        parameter.weight_loader = loading

    for name, parameter in model.named_parameters():
        count(name, parameter)
    return num_loaded


def _lacking(model: torch.nn.Module, keys: Collection[str], short: Collection[str]) -> set[str]:
    """Return the names that are not among keys, and of which parameters are short that vLLM makes of several.

    A parameter may be short because it is padded; so others that make it have to be there.
    """
    wanted = set[str]()
    packed: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", {})
    for fused, parts in packed.items():
        if any(f".{fused}." in f".{name}" for name in short):
            pairs = ((key, part) for key in keys for part in parts if f".{part}." in f".{key}")
            wanted |= {f".{key}".replace(f".{a}.", f".{b}.")[1:] for key, a in pairs for b in parts}
    found = [match.groups() for match in map(_EXPERT.match, keys) if match]
    if found and any(".experts." in name for name in short):
        wanted |= {"".join(each) for each in itertools.product(*map(set, zip(*found, strict=True)))}
    return wanted - set(keys)


class HoldingWorker:
    """Calls that are added to a worker of vLLM (`worker_extension_cls`).

    Its methods return what went wrong: where one of several workers raises, vLLM takes the answers of the others for
    those of the next call.
    """

    weight_transfer_engine: JobWeights
    vllm_config: Any

    def rlinf_join(self, timeout_s: float) -> str:
        """Join the job; "" or what went wrong."""
        return _outcome(self.weight_transfer_engine.init_transfer_engine, JobInit(timeout_s))

    def rlinf_hold(self, name: str, version: int, timeout_s: float | None) -> str:
        """Hold a version of weights; "" or what went wrong."""
        with set_current_vllm_config(self.vllm_config):
            return _outcome(self.weight_transfer_engine.hold, JobUpdate(name, version, timeout_s))

    def rlinf_drop(self) -> str:
        """Hold nothing any more; "" or what went wrong."""
        return _outcome(self.weight_transfer_engine.drop)


def _outcome(call: Callable[..., None], *args: Any) -> str:
    try:
        call(*args)
    except Exception as error:  # noqa: BLE001 - it is told to the process that asked
        return f"{type(error).__name__}: {error}"
    return ""
