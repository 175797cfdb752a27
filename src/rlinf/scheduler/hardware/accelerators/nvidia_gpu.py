"""NVIDIA's accelerators and their profiler, by RLinf's names."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rlinf.scheduler.hardware.accelerators.accelerator import (
    AcceleratorManager,
    AcceleratorType,
    ProfileConfig,
    texts,
)
from rlinf_scheduler.hardware.egl import EGL_VARIABLES, find_egl_devices

EGL_DEVICE_ID_ENV_VARS = EGL_VARIABLES
# Renderers that do not use EGL; whatever else MUJOCO_GL says, some do.
_OTHER_RENDERERS = ("osmesa", "glx")
_MOST = 64


class NvidiaGPUManager(AcceleratorManager):
    """NVIDIA's accelerators."""

    kind = AcceleratorType.NV_GPU

    @classmethod
    def get_accelerator_env_var(cls, visible_accelerators: Sequence[str]) -> dict[str, str]:
        """Return the variables that make a process see these, and render on the first of them."""
        # As RLinf has NCCL work: memory by `cuMem` takes more beside CUDA graphs.
        settings = super().get_accelerator_env_var(visible_accelerators)
        settings["NCCL_CUMEM_ENABLE"] = os.environ.get("NCCL_CUMEM_ENABLE", "0")
        if _torch_needs_avoid_record_streams():
            settings["TORCH_NCCL_AVOID_RECORD_STREAMS"] = "1"
        if not visible_accelerators or os.environ.get("MUJOCO_GL") in _OTHER_RENDERERS:
            return settings
        found = cls.get_egl_device_id(visible_accelerators[0])
        number = str(visible_accelerators[0] if found is None else found)
        return {**settings, **dict.fromkeys(EGL_VARIABLES, number)}

    @classmethod
    def get_egl_device_id(cls, cuda_device_id: int | str) -> int | None:
        """Return EGL's number of a device, by its entry in this process's visibility variable; None if unknown."""
        name = str(cuda_device_id)
        return _egl_index_by_cuda_device().get(int(name)) if name.isdecimal() else None


def _torch_needs_avoid_record_streams() -> bool:
    """Return whether torch is older than 2.8, which does so by itself."""
    try:
        major, minor = version("torch").split(".")[:2]
        return (int(major), int(minor)) < (2, 8)
    except (PackageNotFoundError, ValueError):
        return False


def _query_egl_index_by_cuda_ordinal() -> dict[int, int]:
    found = find_egl_devices(_MOST, os.environ)
    return {ordinal: number for ordinal, number in enumerate(found) if number >= 0}


@cache
def _egl_index_by_cuda_device() -> dict[int, int]:
    """EGL's numbers by the entries of this process's visibility variable; empty where EGL does not say."""
    try:
        number_of = _query_egl_index_by_cuda_ordinal()
    except OSError:
        return {}
    visible = NvidiaGPUManager.get_visible_devices() or range(_MOST)
    return {device: number_of[ordinal] for ordinal, device in enumerate(visible) if ordinal in number_of}


class NsightConfig(ProfileConfig):
    """`profiling:` with Nsight Systems."""

    BACKEND_TYPE = "nsight"

    @property
    def options(self) -> dict[str, str] | None:
        """Options of `nsys profile`, by name."""
        return texts(self.core.options)

    @property
    def flags(self) -> list[str]:
        """Options without values."""
        return list(self.core.flags)

    def to_cli_tokens(self, default_output_prefix: str | None = None) -> list[str]:
        """Return the arguments of `nsys profile`."""
        words: list[Any] = shlex.split(self.core.command("nsys", "python", default_output_prefix or ""))[2:-1]
        return words if default_output_prefix is not None else words[: -2 if words[-2:-1] == ["-o"] else None]
