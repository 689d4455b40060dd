"""Asker: NVML, through vLLM's bundled bindings. vLLM's CUDA platform identifies GPUs with it."""

from __future__ import annotations

import importlib
import types
from typing import Any

from model_cache.engine import on_import

from .device import RESERVED_BYTES, Device
from .patches import Patches

CHECKED = "vllm 0.31.0 to 0.33.0 (vllm/platforms/cuda.py)"
BINDINGS = "vllm.third_party.pynvml"


class _Handle(int):
    """An NVML device handle: the GPU's number."""


def install(patches: Patches, device: Device) -> None:
    """Answer for ``vllm.third_party.pynvml``. Imports vllm; must come before ``vllm.platforms`` is resolved.

    vLLM 0.31.0 resolves it while it is imported itself, so the answers are in place as soon as the bindings are.
    """
    on_import.call(lambda bindings: _answer(patches, device, bindings), BINDINGS)
    importlib.import_module(BINDINGS)


def _answer(patches: Patches, device: Device, nvml: Any) -> None:
    total = device.target.total_memory

    def unsupported(*_: Any, **__: Any) -> None:
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)

    answers: dict[str, object] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: device.count,
        "nvmlDeviceGetHandleByIndex": lambda index: _Handle(index),
        "nvmlDeviceGetHandleByUUID": lambda uuid: _Handle(0),
        "nvmlDeviceGetIndex": lambda handle: int(handle),
        "nvmlDeviceGetCudaComputeCapability": lambda handle: device.target.capability,
        "nvmlDeviceGetName": lambda handle: device.target.device_name,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-00000000-0000-0000-0000-{int(handle):012d}",
        "nvmlDeviceGetMemoryInfo": lambda handle, *_, **__: types.SimpleNamespace(
            total=total, free=total - RESERVED_BYTES, used=RESERVED_BYTES
        ),
        # every GPU reaches every other over NVLink: what the SXM targets are built as, recorded in host_answers
        "nvmlDeviceGetP2PStatus": lambda *_, **__: nvml.NVML_P2P_STATUS_OK,
        # both steer thread placement only
        "nvmlDeviceGetNumaNodeId": unsupported,
        "nvmlDeviceGetCpuAffinity": unsupported,
    }
    for name, value in answers.items():
        patches.set(nvml, name, value, why="NVML needs the driver", checked=CHECKED)
