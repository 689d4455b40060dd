"""Asker: NVML, through vLLM's bundled bindings. vLLM's CUDA platform identifies GPUs with it."""

from __future__ import annotations

import types
from typing import Any

from .device import RESERVED_BYTES, Device
from .patches import Patches

CHECKED = "vllm 0.33.0 (vllm/platforms/cuda.py)"


class _Handle(int):
    """An NVML device handle: the GPU's number."""


def install(patches: Patches, device: Device) -> None:
    """Answer for ``vllm.third_party.pynvml``. Imports vllm; must come before ``vllm.platforms`` is resolved."""
    import vllm.third_party.pynvml as nvml

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
        "nvmlDeviceGetP2PStatus": lambda *_: nvml.NVML_P2P_STATUS_OK,
        # both steer thread placement only
        "nvmlDeviceGetNumaNodeId": unsupported,
        "nvmlDeviceGetCpuAffinity": unsupported,
    }
    for name, value in answers.items():
        patches.set(nvml, name, value, why="NVML needs the driver", checked=CHECKED)
