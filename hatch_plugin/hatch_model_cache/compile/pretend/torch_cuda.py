"""Asker: torch.cuda and torch.accelerator. Must be answered before ``torch._dynamo`` is imported, since Dynamo maps the
functions of torch.cuda to rules by object identity at import."""

from __future__ import annotations

import functools
import types
from typing import Any

from .device import Device, Properties
from .patches import Patches

CHECKED = "torch 2.13.0 and 2.14.0"


class Stream:
    """A stream on which nothing runs."""

    device_type = 1
    cuda_stream = 0
    stream_id = 0
    device_index = 0

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        import torch

        self.device = torch.device("cuda", 0)
        self.priority = priority

    def wait_stream(self, stream: Any) -> None:
        """Nothing to wait for."""

    def wait_event(self, event: Any) -> None:
        """Nothing to wait for."""

    def record_event(self, event: Any = None) -> Any:
        """An event that has happened."""
        return event or Event()

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """All work is done."""
        return True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Event:
    """An event that has happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any, **__: Any) -> None:
        """Happened already."""

    wait = synchronize = record

    def query(self) -> bool:
        """It has happened."""
        return True

    def elapsed_time(self, _: Event) -> float:
        """Milliseconds between two events: none."""
        return 0.0


class _StreamContext:
    def __init__(self, stream: Any = None) -> None:
        self.stream = stream

    def __enter__(self) -> _StreamContext:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def install(patches: Patches, device: Device) -> None:
    """Answer for torch.cuda, torch.accelerator and the ``torch._C._cuda_*`` functions that Python code calls."""
    import torch

    # torch's own hook for a CUDA build on a machine without a GPU: a device guard that does nothing. Stays after undo.
    torch._C._ensureCUDADeviceGuardSet()
    stream = Stream()

    class DeviceContext:
        def __init__(self, wanted: Any = None) -> None:
            self.idx = device.index(wanted)

        def __enter__(self) -> DeviceContext:
            self.before = device.current
            device.current = self.idx
            return self

        def __exit__(self, *_: object) -> None:
            device.current = self.before

    _cuda(patches, device, stream, DeviceContext)
    _bindings(patches, device)
    _accelerator(patches, device, stream, DeviceContext)


def _all(patches: Patches, owner: Any, answers: dict[str, object], why: str) -> None:
    for name, value in answers.items():
        patches.set(owner, name, value, why=why, checked=CHECKED)


def _cuda(patches: Patches, device: Device, stream: Stream, context: type) -> None:
    import torch
    import torch.cuda.memory
    import torch.cuda.streams

    # the answers have the parameters of the questions, which hide names of this function
    index, select, target = device.index, device.select, device.target
    properties = functools.cache(lambda number: Properties(target, number))
    nothing = lambda *_, **__: None  # noqa: E731
    zero = lambda *_, **__: 0  # noqa: E731
    memory: dict[str, object] = {
        "memory_allocated": zero,
        "memory_reserved": zero,
        "max_memory_allocated": zero,
        "max_memory_reserved": zero,
        "reset_peak_memory_stats": nothing,
        "empty_cache": nothing,
        "mem_get_info": lambda *_, **__: device.free_and_total(),
        "memory_stats": lambda *_, **__: {},
    }
    _all(patches, torch.cuda, memory, "an idle GPU's memory")
    _all(patches, torch.cuda.memory, memory, "an idle GPU's memory")
    _all(patches, torch.cuda.memory, {"get_allocator_backend": lambda: "native"}, "the allocator's name")
    _all(patches, torch.cuda.streams, {"Stream": Stream, "Event": Event}, "streams need a context")
    _all(
        patches,
        torch.cuda,
        {
            "is_available": lambda: True,
            "is_initialized": lambda: device.in_use,
            "_is_in_bad_fork": lambda: False,
            "_lazy_init": nothing,
            "init": nothing,
            "device_count": lambda: device.count,
            "_device_count_nvml": lambda: device.count,
            "current_device": lambda: device.current,
            "set_device": lambda device: select(device),
            "_exchange_device": zero,
            "_maybe_exchange_device": zero,
            "device": context,
            "device_of": context,
            "can_device_access_peer": lambda *_, **__: True,
        },
        "which GPUs there are",
    )
    _all(
        patches,
        torch.cuda,
        {
            "get_device_properties": lambda device=None: properties(index(device)),
            "get_device_capability": lambda device=None: target.capability,
            "get_device_name": lambda device=None: target.device_name,
            "is_bf16_supported": lambda including_emulation=True: target.capability[0] >= 8 or including_emulation,
        },
        "what the GPU is",
    )
    _all(
        patches,
        torch.cuda,
        {
            "Stream": Stream,
            "Event": Event,
            "StreamContext": _StreamContext,
            "stream": lambda stream=None: _StreamContext(stream),
            "current_stream": lambda *_, **__: stream,
            "default_stream": lambda *_, **__: stream,
            "set_stream": nothing,
            "synchronize": nothing,
            "ipc_collect": nothing,
            "is_current_stream_capturing": lambda: False,
            "graph_pool_handle": lambda *_: (0, 0),
            "manual_seed": nothing,
            "manual_seed_all": nothing,
            "get_rng_state": lambda *_, **__: torch.zeros(16, dtype=torch.uint8),
            "set_rng_state": nothing,
            "cudart": lambda: types.SimpleNamespace(cudaProfilerStart=nothing, cudaProfilerStop=nothing),
        },
        "nothing runs on it",
    )


def _bindings(patches: Patches, device: Device) -> None:
    import torch

    nothing = lambda *_, **__: None  # noqa: E731
    _all(
        patches,
        torch._C,
        {
            "_cuda_init": nothing,
            "_cuda_getDeviceCount": lambda: device.count,
            "_cuda_getDevice": lambda: device.current,
            "_cuda_setDevice": lambda wanted: device.select(wanted),
            "_cuda_synchronize": nothing,
            "_cuda_getCurrentRawStream": lambda index=0: 0,
            "_cuda_isCurrentStreamCapturing": lambda: False,
            "_cuda_get_conv_benchmark_empty_cache": lambda: False,
        },
        "called past torch.cuda",
    )
    # Pinning asks the driver for page-locked memory; a pageable tensor has the same values.
    _all(
        patches,
        torch.Tensor,
        {
            "pin_memory": lambda self, *_, **__: self,
            "is_pinned": lambda self, *_, **__: type(self) is torch.Tensor and self.device.type == "cpu",
            "record_stream": nothing,
        },
        "page-locked memory comes from the driver",
    )


def _accelerator(patches: Patches, device: Device, stream: Stream, context: type) -> None:
    import torch
    import torch.accelerator.memory

    nothing = lambda *_, **__: None  # noqa: E731
    zero = lambda *_, **__: 0  # noqa: E731
    memory: dict[str, object] = {
        "empty_cache": nothing,
        "memory_stats": lambda *_: {},
        "memory_allocated": zero,
        "memory_reserved": zero,
        "max_memory_allocated": zero,
        "max_memory_reserved": zero,
        "reset_peak_memory_stats": nothing,
        "get_memory_info": lambda *_: device.free_and_total(),
    }
    _all(patches, torch.accelerator, memory, "an idle GPU's memory")
    _all(patches, torch.accelerator.memory, memory, "an idle GPU's memory")
    _all(
        patches,
        torch.accelerator,
        {
            "is_available": lambda: True,
            "device_count": lambda: device.count,
            "current_accelerator": lambda check_available=False: torch.device("cuda"),
            "current_device_index": lambda: device.current,
            "current_device_idx": lambda: device.current,
            "set_device_index": lambda wanted: device.select(wanted),
            "set_device_idx": lambda wanted: device.select(wanted),
            "current_stream": lambda *_, **__: stream,
            "set_stream": nothing,
            "synchronize": nothing,
            "device_index": context,
        },
        "the same questions, device-neutral",
    )
