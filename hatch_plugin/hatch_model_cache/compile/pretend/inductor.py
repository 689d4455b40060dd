"""Asker: Inductor. It loads kernels to count their registers, and times alternatives on the GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .device import Device
from .patches import Patches

CHECKED = "torch 2.13.0 and 2.14.0"

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def install(patches: Patches, device: Device) -> None:
    """Answer the questions Inductor would put to the GPU while it compiles. Nothing is timed and nothing is run.

    Whatever a default build would benchmark is shipped with all its configurations, and benchmarked at first use on
    the serving host; that costs no compile there.
    """
    import torch._inductor.codegen.wrapper as wrapper
    import torch._inductor.fx_passes.pad_mm as pad_mm
    import torch._inductor.runtime.static_triton_launcher as launcher
    import torch._inductor.scheduler as scheduler

    # torch 2.11.0 keeps the kernel and never unloads it, later ones its module too
    handles = (1, 1) if hasattr(launcher.StaticallyLaunchedCudaKernel, "close") else (1,)

    class Driver:
        """Stands for ``torch._C._StaticCudaLauncher``."""

        @staticmethod
        def _load_kernel(path: str, name: str, shared: int, index: int) -> tuple[int, ...]:
            registers, spills = device.load(Path(path).read_bytes(), name, shared)
            return *handles, registers, spills

        @staticmethod
        def _unload_kernel(module: int) -> None:
            return None

        @staticmethod
        def _launch_kernel(*_: Any) -> None:
            raise RuntimeError("a pretended GPU cannot launch a kernel")

    patches.set(
        launcher.StaticallyLaunchedCudaKernel,
        "C_impl",
        Driver,
        why="loading needs the driver; the register count it answers picks configurations and is read from the cubin",
        checked=CHECKED,
    )

    def always(self: Any, nodes: Any) -> bool:
        device.log.stand_ins[("torch._inductor Scheduler.speedup_by_combo_kernel", "True")] += 1
        return True

    patches.set(
        scheduler.Scheduler,
        "speedup_by_combo_kernel",
        always,
        why="times the combined kernel against its parts; True is what Inductor answers itself for small kernels",
        checked=CHECKED,
    )

    def skip(self: Any) -> None:
        return None

    patches.set(
        wrapper.PythonWrapperCodegen,
        "generate_and_run_autotune_block",
        skip,
        why="runs every configuration; autotune_at_compile_time cannot be turned off instead, it is in the key",
        checked=CHECKED,
    )

    should_pad = pad_mm._should_pad

    def never_when_timed(*args: Any, **kwargs: Any) -> bool:
        try:
            return bool(should_pad(*args, **kwargs))
        except RuntimeError as error:
            if "driver" not in str(error):
                raise
            device.log.stand_ins[("torch._inductor pad_mm._should_pad", "False")] += 1
            return False

    patches.set(pad_mm, "_should_pad", never_when_timed, why="times padded against unpadded matmuls", checked=CHECKED)
    _constants_on_cpu(patches)
    _same_bytes(patches)


def _constants_on_cpu(patches: Patches) -> None:
    """Inductor makes tensors of one element on the GPU to learn the values of constants, with every mode turned off."""
    import torch
    import torch._inductor.fx_passes.joint_graph as joint_graph
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    # where the type checker runs there is no torch, so its classes are of no known type
    class OnCpu(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            args, kwargs = tree_map(_on_cpu, (args, kwargs or {}))
            return func(*args, **kwargs)

    def _on_cpu(x: Any) -> Any:
        return torch.device("cpu") if isinstance(x, torch.device) and x.type == "cuda" else x

    # as above
    class Folder(joint_graph.UniformValueConstantFolder):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            with OnCpu():
                super().__init__(*args, **kwargs)

        def run(self, *args: Any, **kwargs: Any) -> Any:
            with OnCpu():
                return super().run(*args, **kwargs)

    why = "runs on the GPU; only the values are used"
    patches.set(joint_graph, "UniformValueConstantFolder", Folder, why=why, checked=CHECKED)


def _same_bytes(patches: Patches) -> None:
    """What makes two builds of one recipe differ in bytes and is in no key: debug texts, directory order, durations."""
    import os

    import torch._inductor.triton_bundler as bundler
    from triton import knobs

    why = "same recipe, same bytes"
    # With propagation on, setting a knob also sets TRITON_DISABLE_LINE_INFO, which is in Triton's key.
    patches.set(knobs, "propagate_env", False, why=why, checked="triton 3.7.1 and 3.8.0")
    for name in ("disable_line_info", "store_binary_only"):
        patches.set(knobs.compilation, name, True, why=why, checked="triton 3.7.1 and 3.8.0")

    class SortedOs:
        """The os module, with listdir in order."""

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        @staticmethod
        def listdir(path: str) -> list[str]:
            return sorted(os.listdir(path))

    patches.set(bundler, "os", SortedOs(), why=f"{why}: TritonBundler.collect", checked=CHECKED)
    same_in_every_process(patches)


def same_in_every_process(patches: Patches) -> None:
    """Leave out of what torch saves how long a graph took to compile, and where functions lay in memory (in the lines
    that explain a key). Neither is in a key."""
    import torch._inductor.output_code as output_code
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
    from torch._inductor.codecache import FxGraphCachePickler

    why = "same recipe, same bytes"
    prepare = output_code.CompiledFxGraph.prepare_for_serialization

    def without_duration(self: Any) -> None:
        prepare(self)
        self._time_taken_ns = 0

    patches.set(output_code.CompiledFxGraph, "prepare_for_serialization", without_duration, why=why, checked=CHECKED)
    make = AOTAutogradCache.make_entry

    def make_entry(*args: Any, **kwargs: Any) -> Any:
        return make(*args, **{**kwargs, "forward_time_taken_ns": 0, "backward_time_taken_ns": 0})

    patches.set(AOTAutogradCache, "make_entry", staticmethod(make_entry), why=why, checked=CHECKED)
    explain = FxGraphCachePickler.debug_lines

    def debug_lines(self: Any, inp: Any) -> list[str]:
        return [_ADDRESS.sub(" at 0x0", line) for line in explain(self, inp)]

    patches.set(FxGraphCachePickler, "debug_lines", debug_lines, why=why, checked=CHECKED)
