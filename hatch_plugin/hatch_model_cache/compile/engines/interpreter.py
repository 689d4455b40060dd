"""The versions that an engine runs with, in the interpreter that asks."""

from __future__ import annotations

import platform
import sys
from importlib import metadata


def versions(name: str, version: str) -> dict[str, str | None]:
    """The ``engine`` object of the manifest: `name` and `version` of the engine, and what it runs with here.

    Triton's is None where it is not installed, CUDA's for a build of torch without it.
    """
    import torch

    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = None
    return {
        "name": name,
        "version": version,
        "torch": torch.__version__,
        "triton": triton,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "platform": f"{sys.platform}_{platform.machine()}",
    }
