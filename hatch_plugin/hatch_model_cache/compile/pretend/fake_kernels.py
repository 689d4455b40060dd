"""Operators that the engine runs eagerly and that have no fake kernel: what they return, stated here by hand.

An operator that is not in `WITHOUT_FAKE_KERNEL` and has none of its own stops the build with its name. Before adding
one, read its implementation: a wrong shape, dtype or stride may be traced into the artifact. Every use is listed in
the manifest (``build.stand_ins``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FakeKernel:
    """What an operator returns, without running it.

    Attributes:
        answer: takes the operator's arguments (FakeTensors), returns FakeTensors.
        returns: the same in words.
        why: where it is asked, and why an answer without values is enough.
        source: the implementation that `answer` was read from.
        asked_in: the only file of the engine that `why` holds for; elsewhere the operator stops the build. Empty: any.
    """

    answer: Callable[..., Any]
    returns: str
    why: str
    source: str
    asked_in: str = ""


ARRAYS = ("vllm/model_executor/layers/quantization/utils/quant_utils.py",)
"""Files of vllm 0.33.0 that unpack and pack weights on the host: shapes follow from shapes there."""

_TMA_ALIGNMENT = 4
"""Rows of 32-bit scales are padded to a multiple of this: 16 bytes."""


def _scheduler_metadata(batch_size: int, *_: Any, **__: Any) -> Any:
    import torch

    return torch.empty(batch_size + 1, dtype=torch.int32, device="cuda")


def _one_value(values: Any, *_: Any, **__: Any) -> tuple[Any, Any, Any]:
    import torch

    nothing = values.new_empty(0, dtype=torch.int64)
    return values.reshape(-1)[:1].clone(), nothing, nothing


def _one_place(condition: Any) -> Any:
    import torch

    return condition.new_zeros((1, condition.dim()), dtype=torch.int64)


def _required_layout(
    scales: Any,
    mn: int,
    k: int,
    recipe: Sequence[int],
    num_groups: int | None = None,
    is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False,
    psum_layout: Any = None,
) -> Any:
    import torch

    rows_per_scale = recipe[0] if len(recipe) == 2 or is_sfa else recipe[1]
    if scales.dtype is torch.int32:
        return scales
    if not disable_ue8m0_cast:  # four exponents to one int32, one row of them for every row of the weight
        return _mn_major(scales, mn, -(-scales.shape[-1] // 4), torch.int32)
    return scales if rows_per_scale == 128 else _mn_major(scales, mn, scales.shape[-1], torch.float32)


def _mn_major(like: Any, rows: int, columns: int, dtype: Any) -> Any:
    """Scales of `rows` × `columns` per group, rows next to each other and padded for TMA."""
    padded = -(-rows // _TMA_ALIGNMENT) * _TMA_ALIGNMENT
    groups = tuple(like.shape[:-2])
    strides = (padded * columns,) * len(groups)
    return like.new_empty_strided((*groups, rows, columns), (*strides, 1, padded), dtype=dtype)


WITHOUT_FAKE_KERNEL: dict[str, FakeKernel] = {
    "_vllm_fa3_C::get_scheduler_metadata": FakeKernel(
        _scheduler_metadata,
        returns="one int32 per sequence and a semaphore",
        why="attention metadata, handed to the attention kernel outside every compiled graph",
        source="flash-attention, hopper/flash_api.cpp, mha_fwd_get_scheduler_metadata",
    ),
    "aten::_unique2": FakeKernel(
        _one_value,
        returns="one value: as if all were equal",
        why="vLLM warns of an NVFP4 checkpoint whose fused layers have different scales; nothing else follows from it",
        source="vllm 0.33.0, compressed_tensors_w4a4_nvfp4.py, process_weights_after_loading",
    ),
    "aten::allclose": FakeKernel(
        lambda *_, **__: True,
        returns="yes",
        why="vLLM warns of an NVFP4 checkpoint whose experts' two halves have different scales; nothing else follows",
        source="vllm 0.33.0, compressed_tensors_moe_w4a4_nvfp4.py, process_weights_after_loading",
    ),
    "aten::equal": FakeKernel(
        lambda *_, **__: False,
        returns="no",
        why="vLLM shares the memory of embeddings and head if a checkpoint has both and they are equal; the head is in "
        "no compiled graph",
        source="vllm 0.33.0, model_loader/weight_tying.py, maybe_retie_word_embeddings",
    ),
    "aten::nonzero": FakeKernel(
        _one_place,
        returns="one place: as if one number were not zero",
        why="the largest scale of NVFP4 weights, for Marlin, makes a factor that scales are multiplied with",
        source="vllm 0.33.0, marlin_utils_fp4.py, _nvfp4_compute_scale_factor",
        asked_in="vllm/model_executor/layers/quantization/utils/marlin_utils_fp4.py",
    ),
    "deep_gemm::transform_sf_into_required_layout": FakeKernel(
        _required_layout,
        returns="the scales as they are, row-major and padded, or packed four to an int32",
        why="scales of fp8 block weights after loading; values play no part in the layout",
        source="DeepGEMM, csrc/apis/layout.hpp and csrc/jit_kernels/impls/smxx_layout.hpp",
    ),
}
"""Qualified name → fake kernel."""
