"""What vLLM asks of the *host*, not of the GPU, while it decides what to compile.

In vllm 0.31.0 to 0.33.0 these answers steer kernels and graphs, and most are in no key, so the manifest records them.
They come from vLLM's own functions: every ``has_*()`` of ``vllm.utils.import_utils``, and the FlashInfer ones of
``vllm.utils.flashinfer`` that need no import of FlashInfer.
"""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Iterable, Iterator
from importlib import metadata
from types import ModuleType
from typing import Any

from . import vllm_versions
from .layout import FACT, SINGLE

_PACKAGES = ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache", "nvidia-cutlass-dsl", "quack-kernels")
_FLASHINFER = ("has_flashinfer", "has_flashinfer_cubin")


def host_answers() -> dict[str, str | bool | int | None]:
    """Names and answers: tools found (never their paths), package versions, and vLLM's own conclusions."""
    import vllm.utils.import_utils as import_utils

    answers: dict[str, str | bool | int | None] = {
        "nvcc": vllm_versions.has_flashinfer_compiler(),
        "ninja": shutil.which("ninja") is not None,
        "CXX": os.environ.get("CXX"),
        "peer_access": True,  # pretended: see pretend/nvml.py
    }
    for name in _PACKAGES:
        try:
            answers[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            answers[name] = None
    return {**answers, **conclusions([*_FLASHINFER, *_questions(import_utils)])}


def conclusions(names: Iterable[str]) -> dict[str, bool]:
    """vLLM's own conclusions about what is installed: those of `names` that are functions of vLLM."""
    import vllm.utils.flashinfer as flashinfer
    import vllm.utils.import_utils as import_utils

    wanted = {name: flashinfer if name in _FLASHINFER else import_utils for name in names}
    return {name: bool(getattr(module, name)()) for name, module in wanted.items() if hasattr(module, name)}


def peer_access(ranks: int) -> bool:
    """Whether the first `ranks` GPUs reach each other over NVLink, as the engine asks before it fuses an all-reduce.

    The same question as in ``vllm.distributed.device_communicators.custom_all_reduce``.
    """
    from vllm.platforms import current_platform as platform

    return bool(platform.is_fully_connected([platform.device_id_to_physical_device_id(rank) for rank in range(ranks)]))


def unkeyed(config: Any, layout: str) -> dict[str, str | bool | int | None]:
    """Values that decide what is compiled and are in none of these versions' keys, when the model is built.

    A cache whose values differ is loaded all the same (`vllm_rules` says what then happens).

    Args:
        config: the engine's ``VllmConfig``.
        layout: which GPU each rank uses, one of `layout.LAYOUTS`.
    """
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends

    speculative = config.speculative_config
    facts: dict[str, str | bool | int | None] = {
        "speculative.method": speculative.method if speculative else None,
        "speculative.num_speculative_tokens": speculative.num_speculative_tokens if speculative else None,
        "attention.backends": ",".join(sorted({b.__name__ for b in get_current_attn_backends(config)})),
        "parallel.tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "device.follows_rank": _device_follows_rank(config.parallel_config, layout),
        FACT: layout,
        "triton.environment": triton_environment(),
    }
    return facts


def _device_follows_rank(parallel: Any, layout: str) -> bool:
    """Whether this process uses the GPU that its rank has in a layout, as every build does: generated code holds it.

    It does not where a launcher gives rank 0 another GPU without hiding the first, and on all but the first of several
    nodes (``ParallelConfig.get_local_gpu_index``, of the rank in place of the rank on this node).
    """
    import torch

    if layout == SINGLE:
        return bool(torch.cuda.current_device() == 0)
    return bool(torch.cuda.current_device() == vllm_versions.local_gpu_index(parallel, parallel.rank))


def triton_environment() -> str:
    """The environment variables that steer Triton's compiler and are set, by Triton's own list of knobs.

    Not the paths of its tools: the engine sets one itself when it finds the tool, and none changes what is compiled.
    """
    from triton import knobs

    names = {
        descriptor.key
        for group in (knobs.language, knobs.nvidia, knobs.compilation)
        for descriptor in group.knob_descriptors.values()
        if not isinstance(descriptor, knobs.env_nvidia_tool)
    }
    return ",".join(f"{name}={os.environ[name]}" for name in sorted(names) if name in os.environ)


def _questions(module: ModuleType) -> Iterator[str]:
    for name, function in sorted(vars(module).items()):
        if name.startswith("has_") and callable(function):
            required = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
            if not required:
                yield name
