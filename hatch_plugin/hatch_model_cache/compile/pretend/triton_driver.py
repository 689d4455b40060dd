"""Asker: Triton's active driver. It names the architecture to compile for and loads what was compiled."""

from __future__ import annotations

import os
from typing import Any

from .device import Device
from .patches import Patches

CHECKED = "triton 3.7.1 and 3.8.0"


PTXAS = "TRITON_PTXAS_PATH"


def choose_ptxas(patches: Patches) -> None:
    """Have Triton find torch's own ptxas from the start, where torch has one (2.11.0), as it does on a serving host.

    torch names it to Triton with the first kernel that it compiles. Triton keeps the version of the ptxas that it has
    asked first, and that is in the keys of kernels: here it would be asked before, and a host, which looks before it
    compiles, would miss those kernels that torch does not load by itself (triton 3.6.0: names over 150 characters).
    """
    from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path

    if PTXAS not in os.environ:
        _set_triton_ptxas_path()
        patches.on_undo(os.environ.pop, PTXAS, None)


def install(patches: Patches, device: Device) -> None:
    """Make a driver for the target the active one; count ptxas runs; launch no kernel."""
    import triton.backends.nvidia.compiler as nvidia_compiler
    import triton.backends.nvidia.driver as nvidia_driver
    from triton.backends import backends
    from triton.backends.compiler import GPUTarget
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.driver import driver as active
    from triton.runtime.jit import JITFunction

    capability = device.target.capability
    target = GPUTarget("cuda", capability[0] * 10 + capability[1], device.target.warp_size)

    class Utils:
        """Stands for the compiled module ``cuda_utils``; an attribute not named here is an error, not a guess."""

        def load_binary(self, name: str, kernel: bytes, shared: int, index: int) -> tuple[int, int, int, int, int]:
            registers, spills = device.load(kernel, name, shared)
            return 1, 1, registers, spills, device.target.max_threads_per_block

        def unload_module(self, *_: Any) -> None:
            return None

        def get_device_properties(self, index: int) -> dict[str, int]:
            return {
                "max_shared_mem": device.target.shared_memory_per_block_optin,
                "max_num_regs": device.target.registers_per_multiprocessor,
                "multiprocessor_count": device.target.sm_count,
                "warpSize": device.target.warp_size,
                "sm_clock_rate": device.target.clock_rate,
                "mem_clock_rate": device.target.memory_clock_rate,
                "mem_bus_width": device.target.memory_bus_width,
            }

        def set_printf_fifo_size(self, *_: Any) -> None:
            return None

    class Launcher:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def __call__(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("a pretended GPU cannot launch a kernel")

    # Triton and Inductor look for a CudaDriver by class, so the stand-in must be one; its __init__ is not run, since it
    # compiles and loads a C extension against the driver.
    class PretendedDriver(nvidia_driver.CudaDriver):  # type: ignore[misc]
        def __init__(self) -> None:
            self.utils = Utils()
            self.launcher_cls = Launcher
            self.get_device_capability = lambda index=0: capability
            self.get_current_stream = lambda index=0: 0
            self.get_current_device = lambda: device.current
            self.set_current_device = device.select

        def get_current_target(self) -> GPUTarget:
            return target

        def get_active_torch_device(self) -> Any:
            import torch

            return torch.device("cuda", device.current)

        def get_device_interface(self) -> Any:
            import torch

            return torch.cuda

        @staticmethod
        def is_active() -> bool:
            return True

    why = "the driver's class decides the backend and the architecture"
    patches.set(nvidia_driver, "CudaDriver", PretendedDriver, why=why, checked=CHECKED)
    backend = backends["nvidia"]
    before = backend.driver
    object.__setattr__(backend, "driver", PretendedDriver)  # a frozen dataclass
    patches.on_undo(object.__setattr__, backend, "driver", before)
    driver = PretendedDriver()
    for name in ("_default", "_active"):
        patches.set(active, name, driver, why=why, checked=CHECKED)

    make_cubin = nvidia_compiler.CUDABackend.make_cubin

    def counting_make_cubin(self: Any, *args: Any, **kwargs: Any) -> Any:
        device.log.ptxas_runs += 1
        return make_cubin(self, *args, **kwargs)

    patches.set(
        nvidia_compiler.CUDABackend, "make_cubin", counting_make_cubin, why="counts ptxas runs", checked=CHECKED
    )

    run = JITFunction.run

    def run_or_skip(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("warmup"):  # compiles, launches nothing
            return run(self, *args, **kwargs)
        device.log.launches_skipped[getattr(self.fn, "__name__", "?")] += 1
        return None

    def skip(self: Any, *_: Any, **__: Any) -> None:
        device.log.launches_skipped[getattr(self.fn, "__name__", type(self).__name__)] += 1

    why = "the engine launches kernels of its own while it sets up; their results are never read here"
    patches.set(JITFunction, "run", run_or_skip, why=why, checked=CHECKED)
    for wrapper in (Autotuner, Heuristics):
        patches.set(wrapper, "run", skip, why=why, checked=CHECKED)
