"""Asker: Inductor. It loads kernels to count their registers, and times alternatives on the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .device import Device
from .patches import Patches

CHECKED = "torch 2.14.0"


def install(patches: Patches, device: Device) -> None:
    """Answer the questions Inductor would put to the GPU while it compiles. Nothing is timed and nothing is run.

    Whatever a default build would benchmark is shipped with all its configurations, and benchmarked at first use on
    the serving host; that costs no compile there.
    """
    import torch._inductor.codegen.wrapper as wrapper
    import torch._inductor.fx_passes.pad_mm as pad_mm
    import torch._inductor.runtime.static_triton_launcher as launcher
    import torch._inductor.scheduler as scheduler

    class Driver:
        """Stands for ``torch._C._StaticCudaLauncher``."""

        @staticmethod
        def _load_kernel(path: str, name: str, shared: int, index: int) -> tuple[int, int, int, int]:
            registers, spills = device.load(Path(path).read_bytes(), name, shared)
            return 1, 1, registers, spills

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
    _same_bytes(patches)


def _same_bytes(patches: Patches) -> None:
    """What makes two builds of one recipe differ in bytes and is in no key: debug texts, directory order, durations."""
    import os

    import torch._inductor.output_code as output_code
    import torch._inductor.triton_bundler as bundler
    from triton import knobs

    why = "same recipe, same bytes"
    # With propagation on, setting a knob also sets TRITON_DISABLE_LINE_INFO, which is in Triton's key.
    patches.set(knobs, "propagate_env", False, why=why, checked="triton 3.8.0")
    for name in ("disable_line_info", "store_binary_only"):
        patches.set(knobs.compilation, name, True, why=why, checked="triton 3.8.0")

    class SortedOs:
        """The os module, with listdir in order."""

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        @staticmethod
        def listdir(path: str) -> list[str]:
            return sorted(os.listdir(path))

    patches.set(bundler, "os", SortedOs(), why=f"{why}: TritonBundler.collect", checked=CHECKED)

    prepare = output_code.CompiledFxGraph.prepare_for_serialization

    def without_duration(self: Any) -> None:
        prepare(self)
        self._time_taken_ns = 0

    patches.set(output_code.CompiledFxGraph, "prepare_for_serialization", without_duration, why=why, checked=CHECKED)
