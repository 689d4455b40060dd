"""Every place where a start of the engine leaves compiled code, and which of them a wheel fills.

Whoever ships one directory wonders why the next start compiles again: other libraries write elsewhere. The places are
those of vllm 0.33.0, torch 2.14.0, triton 3.8.0, flashinfer 0.7.2, tilelang 0.1.12 and nvidia-cutlass-dsl 4.8.0, each
with the variable that moves it.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from stat import S_ISREG

from model_cache.engine.lookups import PIECEWISE

MOST_FILES = 20_000
"""A larger tree is not counted to its end."""


@dataclass(frozen=True)
class Place:
    """One cache. variable: moves it; packed: a wheel fills it; why: if not."""

    name: str
    variable: str
    path: str
    packed: bool
    why: str = ""


@dataclass(frozen=True)
class Found:
    """A place with what is in it. whole: False when it holds more than was counted."""

    place: Place
    files: int
    bytes: int
    whole: bool = True


def places(root: str, environ: Mapping[str, str] = os.environ) -> Iterator[Place]:
    """Where the libraries of an engine with cache root `root` keep their caches, given its environment."""
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111
    yield Place("vLLM: compiled models", "VLLM_CACHE_ROOT", f"{root}/{PIECEWISE}", True)
    yield Place("vLLM: what a model's class can do", "VLLM_CACHE_ROOT", f"{root}/modelinfos", True)
    temporary = environ.get("TMPDIR") or tempfile.gettempdir()
    inductor = environ.get("TORCHINDUCTOR_CACHE_DIR") or f"{temporary}/torchinductor_{_user()}"
    why = "vLLM moves it into the compiled model's directory; what is here is of other programs"
    yield Place("Inductor", "TORCHINDUCTOR_CACHE_DIR", inductor, False, why)
    triton = environ.get("TRITON_CACHE_DIR") or f"{environ.get('TRITON_HOME') or home}/.triton/cache"
    why = (
        "while the variable is unset, vLLM has Triton look in the compiled model's directory, where a wheel's kernels "
        'of the engine are, if its recipe says components = ["triton"]'
    )
    yield Place("Triton", "TRITON_CACHE_DIR", triton, False, why)
    flashinfer = f"{environ.get('FLASHINFER_WORKSPACE_BASE') or home}/.cache/flashinfer"
    why = "built by ninja, which judges by file times; flashinfer-jit-cache and flashinfer-cubin are wheels of it"
    yield Place("FlashInfer", "FLASHINFER_WORKSPACE_BASE", flashinfer, False, why)
    tuned = environ.get("VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR") or f"{root}/flashinfer_autotune_cache"
    why = "what was fastest on this GPU, by timing"
    yield Place("FlashInfer: tuning", "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR", tuned, False, why)
    gemm = environ.get("DG_JIT_CACHE_DIR") or f"{root}/deep_gemm"
    why = "its key holds the absolute path of its own headers, so that another environment misses"
    yield Place("DeepGEMM", "DG_JIT_CACHE_DIR", gemm, False, why)
    tilelang = environ.get("TILELANG_CACHE_DIR") or f"{home}/.tilelang/cache"
    yield Place("TileLang", "TILELANG_CACHE_DIR", tilelang, False, "needs nvcc, and a GPU to choose by timing")
    user = environ.get("USER") or environ.get("USERNAME") or _user()
    dsl = environ.get("CUTE_DSL_CACHE_DIR") or f"{temporary}/{user}/cutlass_python_cache"
    yield Place("CuTe-DSL", "CUTE_DSL_CACHE_DIR", dsl, False, "not built without a GPU yet: nobody has tried")
    why = "how much memory the model has left on this GPU; kept with VLLM_ENABLE_STARTUP_PLAN=1 only"
    yield Place("vLLM: memory plan", "VLLM_CACHE_ROOT", f"{root}/startup_plan", False, why)
    driver = environ.get("CUDA_CACHE_PATH") or f"{home}/.nv/ComputeCache"
    yield Place("CUDA driver", "CUDA_CACHE_PATH", driver, False, "the driver's own, of code that came as PTX")


def _user() -> str:
    """The user's name as torch spells it in a path (`default_cache_dir`)."""
    import getpass

    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid_{os.getuid()}"
    return re.sub(r'[\\/:*?"<>|]', "_", name)


def collect(root: str, environ: Mapping[str, str] = os.environ) -> tuple[Found, ...]:
    """All places with the number and size of the files in them; a place that is not there has none. Follows no link."""
    return tuple(_count(place) for place in places(root, environ))


def _count(place: Place) -> Found:
    files = size = 0
    for entry in _walk(place.path):
        if files == MOST_FILES:
            return Found(place, files, size, whole=False)
        files, size = files + 1, size + entry.st_size
    return Found(place, files, size)


def _walk(path: str) -> Iterator[os.stat_result]:
    pending = [path]
    while pending:
        # what cannot be read, or goes while we look, counts as nothing
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                    continue
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if S_ISREG(status.st_mode):
                        yield status
