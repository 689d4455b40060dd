"""Asker: Humming, the kernels that vLLM picks for some 4-bit weights, and for fp8 where a GPU has none.

It asks the driver by an extension of its own. What it knows of a GPU is listed in humming/csrc/device_info.cpp: what
the driver says, and what follows from that by the clocks. Not answered here: the L1 cache, and throughput of tensor
cores that are not listed; asking stops the build.
"""

from __future__ import annotations

import importlib.util
import types
from typing import Any

from hatch_model_cache.targets import Target

from .device import Device
from .patches import Patches

CHECKED = "humming-kernels as vllm 0.31.0 to 0.33.0 require it"

_OPERATIONS = {75: 1024, 80: 2048, 86: 1024, 87: 2048, 89: 1024, 90: 4096, 100: 8192, 103: 8192, 120: 1024}
"""sm_version → operations on 16-bit floats that the tensor cores of an SM do in a clock."""

_TIMES = {
    "float16": (1, 75),
    "bfloat16": (1, 80),
    "int8": (2, 75),
    "int4": (4, 75),
    "float8e4m3": (2, 89),
    "float8e5m2": (2, 89),
    "float8e3m4": (2, 100),
    "float6e2m3": (2, 100),
    "float6e3m2": (2, 100),
    "float4e0m3": (4, 100),
    "float4e2m1": (4, 100),
}
"""Type → how many times as many there are of it, and the first sm_version that has it."""

_HALF_AS_FAST = (75, 86, 89)
"""sm_version of GPUs that do half as many operations where sums are 32-bit floats."""


def throughput(target: Target) -> dict[str, float]:
    """Type → 10^12 operations a second of the tensor cores, as Humming reckons; empty for a GPU it does not know."""
    major, minor = target.capability
    version = 10 * major + minor
    if version not in _OPERATIONS:
        return {}
    whole = target.sm_count * _OPERATIONS[version] * target.clock_rate / 1e9
    floats = whole / 2 if version in _HALF_AS_FAST else whole
    types = {name: times for name, (times, first) in _TIMES.items() if version >= first}
    return {name: times * (whole if name.startswith("int") else floats) for name, times in types.items()}


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
        memory_bandwidth_gbps=2 * target.memory_clock_rate * target.memory_bus_width / 8 / 1e6,
        tensorcore_tops=throughput(target),
    )

    def info(index: int) -> Any:
        return types.SimpleNamespace(**vars(answers), index=device.current if index < 0 else index)

    extension = types.SimpleNamespace(_DeviceInfo=info)
    why = "asks the driver through an extension of its own"
    patches.set(humming, "_get_device_info_extension", lambda: extension, why=why, checked=CHECKED)
    instances = vars(humming.DeviceInfo).get("_instances", {})  # only vllm 0.33.0's keeps what it was answered
    patches.on_undo(instances.clear)
    patches.on_undo(setattr, humming.current_device, "_value", None)
