"""Asker: FlashInfer. It builds a module with nvcc when one of its functions is first called, and runs it on weights."""

from __future__ import annotations

import importlib.util
from typing import Any

from .device import Device
from .patches import Patches

CHECKED = "flashinfer 0.7.2 as vllm 0.33.0 requires it"
FIRST_WITH_FP4 = (10, 0)


def install(patches: Patches, device: Device) -> None:
    """Answer for the FP4 module of Blackwell GPUs, where FlashInfer is installed: what orders the scales of weights.

    The values play no part in the order, and the kernel that takes the scales is called by name in the graph. Whatever
    else is asked of the module is FlashInfer's own: built, or the end of the compile with nvcc's words.
    """
    if device.target.capability < FIRST_WITH_FP4 or importlib.util.find_spec("flashinfer") is None:
        return
    import flashinfer.quantization.fp4_quantization as fp4

    real = fp4.get_fp4_quantization_module

    class Module:
        """The FP4 module of one architecture."""

        def __init__(self, architecture: str) -> None:
            self._architecture = architecture

        def block_scale_interleave_sm100(self, scales: Any) -> Any:
            """Scales of each expert, its rows padded to 128 and its columns to 4, in one row."""
            *experts, rows, columns = scales.shape
            device.log.stand_ins["flashinfer.block_scale_interleave", "scales of no value"] += 1
            size = fp4._compute_swizzled_layout_sf_size(rows, columns, 128)
            return scales.new_empty((experts[0] * size if experts else size,))

        def __getattr__(self, name: str) -> Any:
            return getattr(real(self._architecture), name)

    why = "builds with nvcc, and runs on the weights"
    patches.set(fp4, "get_fp4_quantization_module", lambda backend="100": Module(backend), why=why, checked=CHECKED)
