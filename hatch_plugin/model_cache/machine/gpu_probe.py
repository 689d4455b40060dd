"""A program of its own: ask the CUDA driver about the visible GPUs and print JSON.

It is run with `python -I -S` and imports nothing of this project. It never runs inside the caller: cuInit
there would leave CUDA state behind, and a server that forks afterwards breaks.

Attribute numbers: CUdevice_attribute in cuda.h (CUDA 13.0). No context is created, so no GPU memory is taken.
"""

from __future__ import annotations

import ctypes
import json
import sys

ATTRIBUTES = {
    "max_threads_per_block": 1,
    "shared_memory_per_block": 8,
    "warp_size": 10,
    "clock_rate": 13,
    "sm_count": 16,
    "memory_clock_rate": 36,
    "memory_bus_width": 37,
    "l2_cache_size": 38,
    "max_threads_per_multiprocessor": 39,
    "capability_major": 75,
    "capability_minor": 76,
    "shared_memory_per_multiprocessor": 81,
    "registers_per_multiprocessor": 82,
    "shared_memory_per_block_optin": 97,
}


NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE, which cuInit also gives when CUDA_VISIBLE_DEVICES hides all."""


class DriverError(Exception):
    """The driver has answered with an error status."""

    def __init__(self, function: str, status: int) -> None:
        super().__init__(f"{function} says error {status}")
        self.status = status


def call(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    status = getattr(library, name)(*arguments)
    if status:
        raise DriverError(name, status)


def read_device(library: ctypes.CDLL, index: int) -> dict[str, object]:
    device = ctypes.c_int()
    call(library, "cuDeviceGet", ctypes.byref(device), index)
    name = ctypes.create_string_buffer(256)
    call(library, "cuDeviceGetName", name, len(name), device)
    memory = ctypes.c_size_t()
    call(library, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    values: dict[str, object] = {}
    for field, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        call(library, "cuDeviceGetAttribute", ctypes.byref(value), number, device)
        values[field] = value.value
    capability = f"{values.pop('capability_major')}.{values.pop('capability_minor')}"
    return {
        "device_name": name.value.decode("utf-8", "replace"),
        "vendor": "nvidia",
        "compute_capability": capability,
        "total_memory": memory.value,
        **values,
    }


def probe() -> dict[str, object]:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"gpus": [], "reason": "no CUDA driver is installed (libcuda.so.1 is not found)"}
    try:
        call(library, "cuInit", 0)
        count = ctypes.c_int()
        call(library, "cuDeviceGetCount", ctypes.byref(count))
        gpus = [read_device(library, index) for index in range(count.value)]
    except (DriverError, AttributeError) as error:
        if getattr(error, "status", None) != NO_DEVICE:
            return {"gpus": [], "reason": f"the CUDA driver does not answer: {error}", "failed": True}
        gpus = []
    return {"gpus": gpus, "reason": None if gpus else "the CUDA driver sees no GPU"}


if __name__ == "__main__":
    json.dump(probe(), sys.stdout)
