"""Asker: Humming, the kernels that vLLM picks for some 4-bit weights. It asks the driver by an extension of its own.

What it knows of a GPU is listed in humming/csrc/device_info.cpp. Not answered here: what no target says (memory
bandwidth, tensor core throughput, the L1 cache); whoever asks for it stops the build.
"""

from __future__ import annotations

import importlib.util
import types
from typing import Any

from .device import Device
from .patches import Patches

CHECKED = "humming-kernels as vllm 0.31.0 to 0.33.0 require it"


def install(patches: Patches, device: Device) -> None:
    """Answer for ``humming.device.DeviceInfo``, where Humming is installed."""
    if importlib.util.find_spec("humming") is None:
        return
    import humming.device as humming

    target = device.target
    major, minor = target.capability
    answers = types.SimpleNamespace(
        name=target.device_name,
        is_ppu=False,
        sm_count=target.sm_count,
        sm_major=major,
        sm_minor=minor,
        sm_version=10 * major + minor,
        max_threads_per_block=target.max_threads_per_block,
        max_threads_per_sm=target.max_threads_per_multiprocessor,
        max_registers_per_sm=target.registers_per_multiprocessor,
        l2_cache_size=target.l2_cache_size,
        default_smem_size=target.shared_memory_per_block,
        max_smem_size=target.shared_memory_per_block_optin,
        max_smem_size_kb=target.shared_memory_per_block_optin / 1024,
        memory_clock_khz=target.memory_clock_rate,
        memory_bus_width=target.memory_bus_width,
        sm_clock_khz=target.clock_rate,
    )

    def info(index: int) -> Any:
        return types.SimpleNamespace(**vars(answers), index=device.current if index < 0 else index)

    extension = types.SimpleNamespace(_DeviceInfo=info)
    why = "asks the driver through an extension of its own"
    patches.set(humming, "_get_device_info_extension", lambda: extension, why=why, checked=CHECKED)
    instances = vars(humming.DeviceInfo).get("_instances", {})  # only vllm 0.33.0's keeps what it was answered
    patches.on_undo(instances.clear)
    patches.on_undo(setattr, humming.current_device, "_value", None)
