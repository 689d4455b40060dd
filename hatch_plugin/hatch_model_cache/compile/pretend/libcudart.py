"""Asker: torch's C++ code, which asks CUDA's runtime past Python when scaled_dot_product_attention picks its kernel.

The pick is not in a key, and without an answer it is another one than a GPU's: attention as single operations.
Checked on torch 2.11.0, 2.13.0 and 2.14.0 (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, select_sdp_backend).
"""

from __future__ import annotations

import json
from pathlib import Path

from hatch_model_cache.targets import Target

from . import libcuda

LIBRARY = "model-cache-cudart.so"
CUDA = "13"
"""Its functions and ``cudaDeviceProp`` are answered as this version has them."""


def install(directory: Path, target: Target) -> None:
    """Load ``libcudart.c``, built for a target. Must come before torch is imported; it stays, as `libcuda` does.

    Raises:
        RuntimeError: if there is no C compiler or it fails.
    """
    major, minor = target.capability
    facts = {
        "NAME": json.dumps(target.device_name),
        "MAJOR": major,
        "MINOR": minor,
        "SM_COUNT": target.sm_count,
        "WARP_SIZE": target.warp_size,
        "MEMORY": f"{target.total_memory}ul",
        "SHARED": target.shared_memory_per_block,
    }
    options = [f"-D{name}={value}" for name, value in facts.items()]
    libcuda.load(Path(__file__).with_name("libcudart.c"), directory / LIBRARY, *options)


def check() -> None:
    """Raises RuntimeError if torch is built for another CUDA: it would not have asked here."""
    import torch

    if str(torch.version.cuda).partition(".")[0] != CUDA:
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs"
        raise RuntimeError(
            f"torch {torch.__version__} is built for {built}; for a GPU it must be a build for CUDA {CUDA}"
        )
