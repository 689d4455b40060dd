"""Builds the stand-in for libcuda and the environment in which the driver probe finds it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("fakes") / "libcuda_gpu.c"


def build(folder: Path) -> Path:
    """Compile the fake driver into `folder` and return `folder`, for LD_LIBRARY_PATH."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = folder / "libcuda.so.1"
    command = [compiler, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    subprocess.run([*command, "-Wl,-soname,libcuda.so.1"], check=True)
    return folder


def spec(*targets: Mapping[str, Any]) -> str:
    """FAKE_GPUS for these target records."""
    return ";".join(
        f"{t['device_name']}|{t['compute_capability']}|{t['sm_count']}|{t['total_memory']}" for t in targets
    )
