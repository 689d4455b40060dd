"""Asker: DeepGEMM, which puts the scales of fp8 weights into its layout.

In vllm 0.31.0 a function of an extension does, and asks for a GPU; since 0.32.0 an operator, which `fake_kernels` has.
"""

from __future__ import annotations

import importlib.util
import types
from typing import Any

from .device import Device
from .fake_kernels import WITHOUT_FAKE_KERNEL
from .patches import Patches

CHECKED = "vllm 0.31.0"
NAME = "transform_sf_into_required_layout"


def install(patches: Patches, device: Device) -> None:
    """Answer for the function, where it is one of an extension."""
    if importlib.util.find_spec("vllm.third_party.deep_gemm") is None:
        return
    import vllm.third_party.deep_gemm as deep_gemm

    if not isinstance(getattr(deep_gemm, NAME, None), types.BuiltinFunctionType):
        return
    stated = WITHOUT_FAKE_KERNEL[f"deep_gemm::{NAME}"]

    def transform(sf: Any, *args: Any, **kwargs: Any) -> Any:
        device.log.stand_ins[f"deep_gemm.{NAME}", "scales of no value"] += 1
        return stated.answer(sf, *args, **kwargs)

    patches.set(deep_gemm, NAME, transform, why="asks for a GPU, and moves values", checked=CHECKED)
